// The product of packed 8-bit operands in tiles of AMX: two tiles of pixels by two of outputs.
//
// While a block is multiplied, the sums of the block before it become results, a few rows after
// each step of K, so that tiles and vectors work side by side.
#include "int8_conv.hpp"
#include "tile_amx.hpp"

namespace TY_ISA {
namespace {

enum {
  BLOCK_ROWS = 2 * TILE_MAX_ROWS,
  BLOCK_OUTPUTS = 32,
  BLOCK_SUMS = (BLOCK_ROWS + 4) * BLOCK_OUTPUTS  // four rows more are read, and come to nothing
};

// Positions are what rows of tiles stand for: pixels, and whatever lies between two rows of pixels
// at the same distance. They are counted within a part: all images, one image or one row of it.
struct Positions {
  int64_t parts, count;   // count: of a part
  int64_t row, pixels;    // positions of a row, and how many of them are pixels
  int64_t lines, all;     // parts of an image, and pixels of a part
  int64_t chunk, splits;  // positions of an item, and items that share them
};

Positions positions_of(const Q8Plan &p, int32_t threads) {
  const int64_t pixels = p.n * p.oh * p.ow;
  Positions found = {1, pixels, pixels, pixels, 1, pixels, 0, 1};
  const bool dense = p.gather != nullptr || ((p.oh == 1 || p.row == p.ow * p.pixel) &&
                                             (p.n == 1 || p.image == p.oh * p.ow * p.pixel));
  if (!dense && p.by_rows) {
    found = {p.n * p.oh, p.ow, p.ow, p.ow, p.oh, p.ow, 0, 1};
  } else if (!dense) {
    const int64_t row = p.row / p.pixel;
    found = {p.n, (p.oh - 1) * row + p.ow, row, p.ow, 1, p.oh * p.ow, 0, 1};
  }
  const int64_t most = p.gather != nullptr ? q8_gathered(p.k4, found.count) : 1024;
  const int64_t chunks = ceil_div(found.count, most);
  found.chunk = round_up(ceil_div(found.count, chunks), BLOCK_ROWS);
  // Two pieces for each thread; what is gathered serves as many outputs as may be.
  if (threads > 1)
    found.splits = lesser(ceil_div(2 * threads, found.parts * chunks), ceil_div(p.o, 64));
  return found;
}

// Rows of sums that wait to become results.
struct Waiting {
  const int32_t *sums = nullptr;
  int rows = 0, done = 0, blocks = 1;
  int64_t o = 0;
  int64_t column = 0, pixel = 0;  // of the row `done`
};

// The pixel that the next row belongs to, or -1 where there is none.
TY_INLINE int64_t next_pixel(const Positions &all, Waiting &w) {
  const int64_t found = w.done < w.rows && w.column < all.pixels ? w.pixel++ : -1;
  ++w.done;
  if (++w.column == all.row) w.column = 0;
  return found;
}

TY_INLINE __m128i quarter(vi bytes, int which) {
  switch (which) {
    case 0:
      return _mm512_castsi512_si128(bytes);
    case 1:
      return _mm512_extracti32x4_epi32(bytes, 1);
    case 2:
      return _mm512_extracti32x4_epi32(bytes, 2);
    default:
      return _mm512_extracti32x4_epi32(bytes, 3);
  }
}

template <int BLOCKS>
TY_INLINE void finish_narrow(const Q8Plan &p, const Positions &all, Waiting &w, int count) {
  enum { ROWS = 4 / BLOCKS };
  const vi order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const vi residual_zero = vi_set1(p.residual.zero_point);
  const vf residual_multiplier = vset1(p.residual.multiplier);
  vf multiplier[BLOCKS];
  for (int b = 0; b < BLOCKS; ++b) multiplier[b] = vload(p.multiplier + w.o + 16 * b);
  for (const int end = w.done + count; w.done < end;) {
    const int32_t *sums = w.sums + w.done * BLOCKS * 16;
    int64_t pixels[ROWS];
    vi whole[4];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) {
      pixels[r] = next_pixel(all, w);
#pragma GCC unroll 2
      for (int b = 0; b < BLOCKS; ++b) {
        vf t = vmul(vi_to_vf(vi_load(sums + (r * BLOCKS + b) * 16)), multiplier[b]);
        if (p.residual.data != nullptr && pixels[r] >= 0) {
          const Q8Lanes with = q8_load16(p.residual.data + pixels[r] * p.y_pixel + w.o + 16 * b, 16,
                                         p.residual.is_signed);
          t = vadd(t, vmul(vi_to_vf(vi_sub(with.part[0], residual_zero)), residual_multiplier));
        }
        whole[r * BLOCKS + b] = vf_to_vi(t);
      }
    }
    const vi bytes = _mm512_permutexvar_epi32(order, q8_narrowed(whole, p.narrow));
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) {
      if (pixels[r] < 0) continue;
      uint8_t *to = p.y + pixels[r] * p.y_pixel + w.o;
      if (BLOCKS == 2)
        _mm256_storeu_si256(
            reinterpret_cast<__m256i *>(to),
            r == 0 ? _mm512_castsi512_si256(bytes) : _mm512_extracti64x4_epi64(bytes, 1));
      else
        _mm_storeu_si128(reinterpret_cast<__m128i *>(to), quarter(bytes, r));
    }
  }
}

// Makes results of up to `most` more rows; where whole vectors of bytes are stored, of all rows
// that the last vector holds.
__attribute__((noinline)) void finish(const Q8Plan &p, const Positions &all, Waiting &w, int most) {
  const int left = w.rows - w.done, count = most < left ? most : left;
  if (p.narrow.fits && p.o_room - w.o >= 16 * w.blocks) {
    if (w.blocks == 2)
      finish_narrow<2>(p, all, w, count);
    else
      finish_narrow<1>(p, all, w, count);
    return;
  }
  if (all.row == all.pixels) {  // pixels follow each other
    q8_finish_rows(p, w.sums + w.done * w.blocks * 16, count, w.blocks, w.pixel, w.o);
    w.done += count;
    w.pixel += count;
    return;
  }
  for (int i = 0; i < count; ++i) {
    const int32_t *sums = w.sums + w.done * w.blocks * 16;
    const int64_t pixel = next_pixel(all, w);
    if (pixel >= 0) q8_finish_rows(p, sums, 1, w.blocks, pixel, w.o);
  }
}

// One piece of the parallel loop.
struct Work {
  const Q8Plan &p;
  const Positions &all;
  int64_t step, steps;  // rows of a tile of the second operand, and how many of such tiles in K
  int32_t *sums[2];     // of the block that is multiplied and of the one before
  Waiting waiting = {};
  int64_t rows = 0;               // for which tiles are configured
  const int8_t *ahead = nullptr;  // weights to fetch into the second cache,
  int64_t lines = 0;              // and how many lines of them beside each step
};

template <bool SIGNED, int C, int A, int B>
TY_INLINE void dot() {
  if (SIGNED)
    tile_dot_s8s8<C, A, B>();
  else
    tile_dot_u8s8<C, A, B>();
}

// Tiles 0 to 3 are sums, 4 and 5 pixels, 6 and 7 outputs.
template <bool SIGNED, int HEIGHT, int BLOCKS>
void multiply(Work &work, const uint8_t *a, int64_t pixel, int64_t first, int64_t o) {
  const Q8Plan &p = work.p;
  const int64_t panel = q8_panel_bytes(p.k4), step = work.step;
  const int64_t second = first * pixel;  // the rows of the second tile
  const int8_t *b = p.weight + o / 16 * panel;
  // Rows at no distance are all the same.
  tile_load<0>(p.bias + o, 0);
  if (BLOCKS == 2) tile_load<1>(p.bias + o + 16, 0);
  if (HEIGHT == 2) tile_load<2>(p.bias + o, 0);
  if (HEIGHT == 2 && BLOCKS == 2) tile_load<3>(p.bias + o + 16, 0);
  const int left = work.waiting.rows - work.waiting.done;
  const int share = static_cast<int>(round_up(ceil_div(left, work.steps > 0 ? work.steps : 1), 4));
  for (int64_t run = 0; run < p.n_runs; ++run) {
    const uint8_t *x = a + p.runs[run].offset;
    for (int64_t k = 0; k < p.runs[run].k4; k += step) {
      tile_load<4>(x, pixel);
      tile_load<6>(b, 64);
      dot<SIGNED, 0, 4, 6>();
      if (BLOCKS == 2) {
        tile_load<7>(b + panel, 64);
        dot<SIGNED, 1, 4, 7>();
      }
      if (HEIGHT == 2) {
        tile_load<5>(x + second, pixel);
        dot<SIGNED, 2, 5, 6>();
        if (BLOCKS == 2) dot<SIGNED, 3, 5, 7>();
      }
      for (int64_t i = 0; i < work.lines; ++i, work.ahead += 64)
        _mm_prefetch(reinterpret_cast<const char *>(work.ahead), _MM_HINT_T1);
      x += 4 * step;
      b += 64 * step;
      if (work.waiting.done < work.waiting.rows) finish(p, work.all, work.waiting, share);
    }
  }
  int32_t *sums = work.sums[0];
  tile_store<0>(sums, BLOCKS * 64);
  if (BLOCKS == 2) tile_store<1>(sums + 16, BLOCKS * 64);
  if (HEIGHT == 2) tile_store<2>(sums + first * BLOCKS * 16, BLOCKS * 64);
  if (HEIGHT == 2 && BLOCKS == 2) tile_store<3>(sums + first * BLOCKS * 16 + 16, BLOCKS * 64);
}

void finish_all(Work &work) {
  if (work.waiting.done < work.waiting.rows)
    finish(work.p, work.all, work.waiting, work.waiting.rows - work.waiting.done);
}

typedef void (*Multiply)(Work &, const uint8_t *, int64_t, int64_t, int64_t);
const Multiply multiplies[2][2][2] = {
    {{multiply<false, 1, 1>, multiply<false, 1, 2>},
     {multiply<false, 2, 1>, multiply<false, 2, 2>}},
    {{multiply<true, 1, 1>, multiply<true, 1, 2>}, {multiply<true, 2, 1>, multiply<true, 2, 2>}}};

void configure(Work &work, int64_t rows) {
  if (rows == work.rows) return;
  work.rows = rows;
  const int64_t step = work.step;
  const int64_t first = lesser(rows, TILE_MAX_ROWS);
  TileConfig config;
  for (int tile = 0; tile < 2; ++tile) {
    config.set(tile, first, TILE_ROW_BYTES);
    if (rows > first) config.set(2 + tile, rows - first, TILE_ROW_BYTES);
    if (step > 0) config.set(6 + tile, step, TILE_ROW_BYTES);
  }
  if (step > 0) {
    config.set(4, first, 4 * step);
    if (rows > first) config.set(5, rows - first, 4 * step);
  }
  tile_configure(config);
}

// Positions [begin, end) of a part by the outputs [o, o_end). Blocks are of equal height, so that
// one configuration serves them; the last may begin with rows of the one before it.
void run_item(Work &work, const uint8_t *a, int64_t pixel, int64_t part, int64_t begin, int64_t end,
              int64_t o, int64_t o_end) {
  const Q8Plan &p = work.p;
  const int64_t count = end - begin, blocks = ceil_div(count, BLOCK_ROWS);
  const int64_t rows = ceil_div(count, blocks), first = lesser(rows, TILE_MAX_ROWS);
  configure(work, rows);
  for (; o < o_end; o += BLOCK_OUTPUTS) {
    const int wide = p.o - o > 16;
    const Multiply run = multiplies[p.is_signed][rows > first][wide];
    // The blocks of these outputs share what there is to fetch for the next.
    work.ahead = p.weight + (o + BLOCK_OUTPUTS) / 16 * q8_panel_bytes(p.k4);
    work.lines = o + BLOCK_OUTPUTS < o_end ? ceil_div(2 * work.step, blocks) : 0;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t at = lesser(begin + block * rows, end - rows);
      const int skipped = static_cast<int>(begin + block * rows - at);
      run(work, a + (at - begin) * pixel, pixel, first, o);
      finish_all(work);
      const int64_t row = (at + skipped) / work.all.row, column = (at + skipped) % work.all.row;
      const int64_t before = lesser(column, work.all.pixels);
      work.waiting = {work.sums[0],
                      static_cast<int>(rows),
                      skipped,
                      1 + wide,
                      o,
                      column,
                      part * work.all.all + row * work.all.pixels + before};
      int32_t *const free = work.sums[1];
      work.sums[1] = work.sums[0];
      work.sums[0] = free;
    }
  }
}

}  // namespace

void q8_run(const ty_ctx *ctx, const Q8Plan &given) {
  Q8Plan p = given;
  if (p.n * p.oh * p.ow <= 0 || p.o <= 0) return;
  const float residual = __builtin_fabsf(p.residual.multiplier);
  // Below a half, any sum times its multiplier is an int32, and what a residual of bytes adds
  // leaves it one.
  p.narrow = q8_narrow(p.store, p.w_zero == nullptr && p.floats == nullptr &&
                                    q8_largest(p.multiplier, p.o) < 0.5f &&
                                    (p.residual.data == nullptr || residual < 1048576.0f));
  const Positions all = positions_of(p, ctx->threads);
  const int64_t chunks = ceil_div(all.count, all.chunk);
  const int64_t outputs = round_up(ceil_div(p.o, all.splits), BLOCK_OUTPUTS);
  const int64_t step = q8_even_step(p.runs[0].k4), k4 = p.runs[0].k4 * p.n_runs;
  const int64_t row_room = q8_row_room(p.k4), work_of_item = all.chunk * outputs * k4;
  ty_parallel(
      ctx, all.parts * chunks * all.splits, 1 + 500000 / (work_of_item + 1),
      [&](int64_t from, int64_t to, int32_t slot) {
        alignas(64) int32_t sums[2 * BLOCK_SUMS];
        Work work = {p, all, step, step > 0 ? k4 / step : 0, {sums, sums + BLOCK_SUMS}};
        int64_t gathered = -1;
        for (int64_t item = from; item < to; ++item) {
          const int64_t part = item / all.splits / chunks, chunk = item / all.splits % chunks;
          const int64_t begin = chunk * all.chunk, end = lesser(begin + all.chunk, all.count);
          const int64_t o = item % all.splits * outputs, o_end = lesser(o + outputs, p.o);
          const uint8_t *a = p.x + part / all.lines * p.image + part % all.lines * p.row;
          a += begin * p.pixel;
          if (p.gather != nullptr) {
            uint8_t *stage = p.gather->stage + slot * q8_stage_bytes(p.k4, all.count);
            if (gathered != chunk) q8_gather(*p.gather, stage, begin, end, row_room);
            gathered = chunk;
            a = stage;
          }
          run_item(work, a, p.gather != nullptr ? row_room : p.pixel, part, begin, end, o, o_end);
        }
        finish_all(work);
        // A thread whose tiles hold nothing is cheaper to switch away from and sleeps deeper.
        tile_release();
      });
}

}  // namespace TY_ISA

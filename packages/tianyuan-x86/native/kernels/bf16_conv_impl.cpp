// The loops around the tile of pairs: bands of padded rows, pairs of output blocks, runs of pixels.
#include "bf16_conv.hpp"
#include "conv_band.hpp"

namespace TY_ISA {
namespace {

enum { AHEAD_BYTES = 128 * 1024 };  // of two panels that are worth fetching ahead

// Pixels [x, x + width) of `halves` rows from y.
struct Pixels {
  int64_t y, x, width;
  int halves;
};

struct Item {
  int64_t image, y0, y1, x0, x1, o0, o1;  // o in channel blocks
};

// Sets what all tiles of a pair of blocks share.
void begin_block(const ConvPlan &p, int64_t block, int vectors, PairTile *tile) {
  for (int v = 0; v < vectors; ++v) tile->valid[v] = vtail_of(p.o - (block + v) * VF);
  tile->bias = p.bias ? p.bias + block * VF : nullptr;
  tile->y_row = p.y_row * 2;
  tile->y_next = p.y_channel * 2;
  tile->epilogue = as_clip(p.epilogue);
}

void run_pixels(const ConvPlan &p, PairKind kind, int64_t image, int64_t block, int vectors,
                const Pixels &s, PairTile *tile) {
  const int64_t at = image * p.y_image + block * p.y_channel + s.y * p.y_row + s.x * BLOCK_WORDS;
  tile->y = p.y + at;
  tile->residual = p.residual ? p.residual + at : nullptr;
  pair_tile_of(kind, s.halves, static_cast<int>(s.width * s.halves), vectors)(tile);
}

// Calls body with all pixels of rows [y0, y1) x columns [x0, x1): rows in tiles of nearly equal
// width, or two short rows per tile.
template <typename Body>
TY_INLINE void for_pixels(int64_t y0, int64_t y1, int64_t x0, int64_t x1, bool pairs_rows,
                          const Body &body) {
  const int64_t width = x1 - x0, tiles = ceil_div(width, TILE_ROWS);
  for (int64_t y = y0; y < y1; ++y) {
    if (pairs_rows && width <= TILE_ROWS / 2 && y + 1 < y1) {
      body(Pixels{y, x0, width, 2});
      ++y;
      continue;
    }
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t begin = t * width / tiles, end = (t + 1) * width / tiles;
      body(Pixels{y, x0 + begin, end - begin, 1});
    }
  }
}

// Segments over (channel block, tap), in the order in which the weight lies in memory.
int64_t fill_table(TileSegment *table, const ConvPlan &p, const Band &b) {
  TileSegment *next = table;
  for (int64_t block = 0; block < ceil_div(p.c, VF); ++block)
    for (int64_t t = 0; t < p.n_taps; ++t, ++next) {
      next->a = 4 * (block * b.plane + tap_offset(p, b, p.taps[t]));
      next->b = (block * p.n_weights + p.taps[t].weight) * BLOCK_WORDS * VF;
      next->count = ceil_div(lesser(VF, p.c - block * VF), 2);
    }
  return next - table;
}

void run_item(const ConvPlan &p, const Band &b, const TileSegment *table, int64_t segments,
              const Item &item, float *scratch) {
  PairTile tile = {};
  tile.segments = table;
  tile.n_segments = segments;
  tile.a_row = 4 * p.sh * b.row;
  tile.b_step = VF;
  tile.b_next = ceil_div(p.c, VF) * p.n_weights * BLOCK_WORDS * VF;
  const bool small = tile.b_next * 4 * TILE_VECTORS <= AHEAD_BYTES;
  const float *origin = scratch;
  if (b.copied)
    copy_band(scratch, p, b, item.image, item.y0, item.y1 - item.y0);
  else
    origin = p.x + item.image * p.x_image + (item.y0 * p.sh + b.min_y) * b.row +
             (item.x0 + b.min_x) * BLOCK_WORDS;
  for (int64_t block = item.o0; block < item.o1; block += TILE_VECTORS) {
    const int vectors = static_cast<int>(lesser(TILE_VECTORS, item.o1 - block));
    begin_block(p, block, vectors, &tile);
    tile.b = p.weight + block * tile.b_next;
    // While the first tiles run, the next two panels come nearer, one a tile, if both pairs fit.
    int64_t fetched = block + TILE_VECTORS;
    for_pixels(item.y0, item.y1, item.x0, item.x1, true, [&](const Pixels &s) {
      tile.a = reinterpret_cast<const char *>(origin + (s.y - item.y0) * p.sh * b.row +
                                              (s.x - item.x0) * BLOCK_WORDS);
      const bool more = small && fetched < lesser(item.o1, block + 2 * TILE_VECTORS);
      tile.ahead =
          more ? reinterpret_cast<const char *>(p.weight + fetched * tile.b_next) : nullptr;
      ++fetched;
      run_pixels(p, PAIR_BLOCKS, item.image, block, vectors, s, &tile);
    });
  }
}

// Columns, rows and chunks of output blocks that one item takes.
struct Cut {
  int64_t cols, rows, chunks;
};

// A band has at most as many rows as its copy was planned for, so fewer are always right.
Cut cut_of(const ty_ctx *ctx, const ConvPlan &p, const Band &b, int64_t pairs) {
  Cut cut = {b.cols, b.rows, 1};
  const int64_t wanted = ctx->threads > 1 ? 4 * ctx->threads : 1;
  const auto items = [&] {
    return p.n * ceil_div(b.oh, cut.rows) * ceil_div(b.ow, cut.cols) * cut.chunks;
  };
  while (items() < wanted && b.flat && cut.cols > 4 * TILE_ROWS)
    cut.cols = ceil_div(cut.cols / 2, TILE_ROWS) * TILE_ROWS;
  while (items() < wanted && cut.chunks * 2 <= pairs) cut.chunks *= 2;
  while (items() < wanted && cut.rows > 2) cut.rows = ceil_div(cut.rows, 2);
  return cut;
}

int64_t table_words(int64_t c, int64_t taps) {
  const int64_t bytes = ceil_div(c, VF) * taps * static_cast<int64_t>(sizeof(TileSegment));
  return ceil_div(bytes, 64) * 16;
}

// Pixels of one row next to each other, channels within a pixel, zeros to both sides.
void interleave(uint16_t *to, const float *from, int64_t c, int64_t plane, int64_t w) {
  for (int64_t channel = 0; channel < c; ++channel) {
    const float *row = from + channel * plane;
    uint16_t *out = to + channel;
    for (int64_t x = 0; x < w; x += VF) {
      const int64_t some = lesser(VF, w - x);
      alignas(32) uint16_t lanes[VF];
      vstore_pairs(lanes, vload_tail(row + x, vtail_of(some)));
      if (c == 1) {
        memcpy(out + x, lanes, static_cast<size_t>(some) * 2);
        continue;
      }
      for (int64_t i = 0; i < some; ++i) out[(x + i) * c] = lanes[i];
    }
  }
}

// 16 pixels of three channels at once.
TY_INLINE void interleave_three(uint16_t *to, const float *from, int64_t plane) {
  const __m256i r = (__m256i)_mm512_cvtneps_pbh(vload(from));
  const __m256i g = (__m256i)_mm512_cvtneps_pbh(vload(from + plane));
  const __m256i b = (__m256i)_mm512_cvtneps_pbh(vload(from + 2 * plane));
  const __m512i rg = _mm512_inserti64x4(_mm512_castsi256_si512(r), g, 1);
  alignas(64) static const uint16_t index[48] = {
      0, 16, 32, 1, 17, 33, 2,  18, 34, 3,  19, 35, 4,  20, 36, 5,  21, 37, 6,  22, 38, 7,  23, 39,
      8, 24, 40, 9, 25, 41, 10, 26, 42, 11, 27, 43, 12, 28, 44, 13, 29, 45, 14, 30, 46, 15, 31, 47};
  const __m512i wide = _mm512_castsi256_si512(b);
  _mm512_storeu_si512(to, _mm512_permutex2var_epi16(rg, _mm512_load_si512(index), wide));
  const __m512i last = _mm512_castsi256_si512(_mm256_load_si256((const __m256i *)(index + 32)));
  _mm256_storeu_si256((__m256i *)(to + 32),
                      _mm512_castsi512_si256(_mm512_permutex2var_epi16(rg, last, wide)));
}

// Extents of the padded copy: pixels of a row, rows, and values of a row.
struct Copy {
  int64_t width, height, row;
};

Copy copy_of(const PairFirst &f) {
  const ConvPlan &p = f.plan;
  const int64_t width = greater((p.ow - 1) * p.sw + f.kw, f.left + p.w);
  const int64_t height = (p.oh - 1) * p.sh + f.kh;
  return {width, height, ceil_div(width * p.c, 32) * 32};
}

void copy_images(const ty_ctx *ctx, uint16_t *to, const PairFirst &f, const Copy &copy) {
  const ConvPlan &p = f.plan;
  const int64_t plane = p.h * p.w;
  ty_parallel(ctx, p.n * copy.height, 1 + 16384 / copy.row,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t at = begin; at < end; ++at) {
                  uint16_t *row = to + at * copy.row;
                  const int64_t y = at % copy.height - f.top;
                  if (y < 0 || y >= p.h) {
                    memset(row, 0, static_cast<size_t>(copy.row) * 2);
                    continue;
                  }
                  uint16_t *inside = row + f.left * p.c;
                  const float *from = f.x + at / copy.height * p.c * plane + y * p.w;
                  int64_t x = 0;
                  if (p.c == 3)
                    for (; x + VF <= p.w; x += VF)
                      interleave_three(inside + x * 3, from + x, plane);
                  interleave(inside + x * p.c, from + x, p.c, plane, p.w - x);
                  memset(row, 0, static_cast<size_t>(f.left * p.c) * 2);
                  uint16_t *behind = inside + p.w * p.c;
                  memset(behind, 0, static_cast<size_t>(row + copy.row - behind) * 2);
                }
              });
}

}  // namespace

void pair_conv_run(const ty_ctx *ctx, const ConvPlan &p, float *workspace) {
  if (p.n == 0 || p.o == 0 || p.oh <= 0 || p.ow <= 0) return;
  const Band b = band_of(p);
  const int64_t blocks = ceil_div(p.o, VF), pairs = ceil_div(blocks, TILE_VECTORS);
  const Cut cut = cut_of(ctx, p, b, pairs);
  TileSegment *table = reinterpret_cast<TileSegment *>(workspace);
  const int64_t segments = fill_table(table, p, b);
  float *const scratch = workspace + table_words(p.c, p.n_taps);
  const int64_t per_slot = b.copied ? ceil_div(source_planes(p) * b.plane, 16) * 16 : 0;
  const int64_t y_bands = ceil_div(b.oh, cut.rows), x_bands = ceil_div(b.ow, cut.cols);
  const int64_t items = p.n * y_bands * x_bands * cut.chunks;
  ty_parallel(ctx, items, 1, [&](int64_t begin, int64_t end, int32_t slot) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t chunk = at % cut.chunks, x = at / cut.chunks % x_bands;
      const int64_t y = at / cut.chunks / x_bands % y_bands;
      const Item item = {at / cut.chunks / x_bands / y_bands,
                         y * cut.rows,
                         lesser(b.oh, (y + 1) * cut.rows),
                         x * cut.cols,
                         lesser(b.ow, (x + 1) * cut.cols),
                         lesser(blocks, chunk * pairs / cut.chunks * TILE_VECTORS),
                         lesser(blocks, (chunk + 1) * pairs / cut.chunks * TILE_VECTORS)};
      run_item(p, b, table, segments, item, scratch + slot * per_slot);
    }
  });
}

void pair_first_run(const ty_ctx *ctx, const PairFirst &f, char *workspace) {
  const ConvPlan &p = f.plan;
  if (p.n == 0 || p.o == 0 || p.oh <= 0 || p.ow <= 0) return;
  const Copy copy = copy_of(f);
  TileSegment *table = reinterpret_cast<TileSegment *>(workspace), *next = table;
  const int64_t run = f.kw * p.c, words = ceil_div(run, 2);
  for (int64_t i = 0; i < f.kh; ++i) {
    *next++ = {2 * i * copy.row, i * words * VF, run / 2};
    if (run % 2) *next++ = {2 * (i * copy.row + run - 2), (i * words + run / 2) * VF, 1};
  }
  const int64_t table_bytes = ceil_div(2 * f.kh * static_cast<int64_t>(sizeof(TileSegment)), 64);
  uint16_t *const images = reinterpret_cast<uint16_t *>(workspace + table_bytes * 64);
  copy_images(ctx, images, f, copy);
  const int64_t blocks = ceil_div(p.o, VF), panel = f.kh * words * VF;
  // Rows whose source stays in the first cache while the outputs pass by.
  const int64_t rows = lesser(p.oh, greater(1, 16384 / (copy.row * p.sh)));
  const int64_t bands = ceil_div(p.oh, rows);
  ty_parallel(ctx, p.n * bands, 1, [&](int64_t begin, int64_t end, int32_t) {
    PairTile tile = {};
    tile.segments = table;
    tile.n_segments = next - table;
    tile.a_row = 2 * p.sw * p.c;
    tile.b_step = VF;
    tile.b_next = panel;
    for (int64_t at = begin; at < end; ++at) {
      const int64_t image = at / bands, y0 = at % bands * rows, y1 = lesser(p.oh, y0 + rows);
      const uint16_t *from = images + image * copy.height * copy.row;
      for (int64_t block = 0; block < blocks; block += TILE_VECTORS) {
        const int vectors = static_cast<int>(lesser(TILE_VECTORS, blocks - block));
        begin_block(p, block, vectors, &tile);
        tile.b = p.weight + block * panel;
        for_pixels(y0, y1, 0, p.ow, false, [&](const Pixels &s) {
          tile.a = reinterpret_cast<const char *>(from + s.y * p.sh * copy.row + s.x * p.sw * p.c);
          run_pixels(p, PAIR_IMAGE, image, block, vectors, s, &tile);
        });
      }
    }
  });
}

}  // namespace TY_ISA

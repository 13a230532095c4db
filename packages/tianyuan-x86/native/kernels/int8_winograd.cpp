// conv2d_quantized by Winograd's F(4 x 4, 3 x 3) in integers: the results are those of the direct
// sums, bit for bit.
//
// Transformed images and weights fit 16 bits. Their products are summed modulo 2^32, and a sum is
// known from that where it lies within 2^25 of a centre that the weights give. A weight is packed
// as its direct panels; sums of magnitudes, [block of 16 outputs][16]; and transformed panels,
// [block] [36 frequencies][pair of channels][16 outputs][2]. Where magnitudes sum to too much, the
// direct panels are multiplied.
#include "int8_winograd.hpp"

namespace TY_ISA {
namespace {

// What the kernels' descriptions in Python know too, for the workspace.
enum { L2_BYTES = 448 * 1024, FEWEST_TILES = 28, TILE_PRODUCTS = WINO_FREQUENCIES * 16 * 4 };

#if TY_VF == 16
enum { MAX_ROWS = 7, MAX_BLOCKS = 4 };
#else
enum { MAX_ROWS = 6, MAX_BLOCKS = 1 };
#endif

// A call, and how its tiles are cut: `block` of them are transformed at once.
struct Wino {
  Q8ConvShape s;
  const uint8_t *x, *line;  // the image, and a pixel that stands for zero
  bool is_signed;
  const int8_t *u;
  int64_t channels, c_room, pairs, o_blocks, tiles_y, tiles_x, tiles, block, blocks;
  int64_t v_row, v_step;    // int16 values between tiles and between frequencies
  int64_t panel;            // bytes between blocks of outputs
  const int32_t *start;     // by output: what products of the ones start from
  const int32_t *bias;      // by output, with what `start` took away
  const float *multiplier;  // by output
  int16_t zero;
  Q8Residual residual;
  Q8Store store;
  Q8Narrow narrow;
  uint8_t *y;
  int64_t y_pixel;
};

void plan_tiles(Wino *w, int64_t threads) {
  const Q8ConvShape &s = w->s;
  w->channels = q8_channels(s.c);
  w->c_room = round_up(s.c, WINO_LANES);
  w->pairs = ceil_div(s.c, 4) * 2;
  w->o_blocks = ceil_div(s.o, 16);
  w->panel = WINO_FREQUENCIES * w->pairs * 64;
  w->tiles_y = ceil_div(s.oh, WINO_OUT);
  w->tiles_x = ceil_div(s.ow, WINO_OUT);
  w->tiles = s.n * w->tiles_y * w->tiles_x;
  const int64_t bytes = WINO_FREQUENCIES * w->c_room * 2 + MAX_BLOCKS * TILE_PRODUCTS;
  int64_t fit = L2_BYTES / bytes;
  if (fit < FEWEST_TILES) fit = FEWEST_TILES;
  w->blocks = ceil_div(w->tiles, fit);
  if (w->blocks > 1) w->blocks = round_up(w->blocks, threads);
  w->block = ceil_div(w->tiles, w->blocks);
  w->blocks = ceil_div(w->tiles, w->block);
  w->v_row = w->c_room;
  // An odd number of cache lines, so that the frequencies of a tile lie in different sets.
  w->v_step = (ceil_div(w->block * w->v_row * 2, 64) | 1) * 32;
}

// Where a tile lies: its image, and its first row and column of outputs.
struct Place {
  int64_t image, y, x;
};
TY_INLINE Place place_of(const Wino &w, int64_t tile) {
  return {tile / (w.tiles_x * w.tiles_y), tile / w.tiles_x % w.tiles_y * WINO_OUT,
          tile % w.tiles_x * WINO_OUT};
}

template <bool SIGNED>
void transform_tiles(const Wino &w, int64_t first, int64_t begin, int64_t end, int16_t *v) {
  const Q8ConvShape &s = w.s;
  const w16 zero = w16_set1(w.zero);
  for (int64_t at = begin; at < end; ++at) {
    const Place place = place_of(w, first + at);
    const uint8_t *pixels[36];
    for (int64_t i = 0; i < 6; ++i)
      for (int64_t j = 0; j < 6; ++j) {
        const int64_t iy = place.y + i - s.top, ix = place.x + j - s.left;
        const bool inside = iy >= 0 && iy < s.h && ix >= 0 && ix < s.w;
        pixels[i * 6 + j] =
            inside ? w.x + ((place.image * s.h + iy) * s.w + ix) * w.channels : w.line;
      }
    int16_t *to = v + at * w.v_row;
    for (int64_t c = 0; c < w.channels; c += WINO_LANES)
      wino_input<SIGNED>(pixels, c, w.channels - c < WINO_LANES, zero, to + c, w.v_step);
  }
}

void transform(const Wino &w, int64_t first, int64_t begin, int64_t end, int16_t *v) {
  if (w.is_signed)
    transform_tiles<true>(w, first, begin, end, v);
  else
    transform_tiles<false>(w, first, begin, end, v);
}

TY_INLINE int32_t pair_at(const int16_t *from) {
  int32_t found;
  __builtin_memcpy(&found, from, 4);
  return found;
}

// Products of one frequency: MR tiles, NR blocks of 16 outputs. Tiles of m are [NR][36][16]. What
// lies `ahead` bytes behind the weights is fetched into the second-level cache.
template <int MR, int NR>
void products(const int16_t *v, int64_t v_row, const int8_t *u, int64_t panel, int64_t pairs,
              int64_t ahead, const int32_t *start, int32_t *m) {
  enum { N = NR * Q8_PARTS };
  vi sums[MR][N];
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
      sums[r][n] = start == nullptr ? vi_set1(0) : vi_load(start + n * TY_VF);
  for (int64_t k = 0; k < pairs; ++k, u += 64) {
    vi weight[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
      weight[n] = vi_load(static_cast<const int32_t *>(static_cast<const void *>(
          u + n / Q8_PARTS * panel + n % Q8_PARTS * static_cast<int>(sizeof(vi)))));
#pragma GCC unroll 4
    for (int n = 0; n < NR; ++n)
      _mm_prefetch(reinterpret_cast<const char *>(u + n * panel + ahead), _MM_HINT_T1);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const vi pair = vi_set1(pair_at(v + r * v_row + 2 * k));
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sums[r][n] = w16_dot(sums[r][n], pair, weight[n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
      vi_store(m + (r * NR + n / Q8_PARTS) * TILE_PRODUCTS / 4 + n % Q8_PARTS * TY_VF, sums[r][n]);
}

typedef void (*Products)(const int16_t *, int64_t, const int8_t *, int64_t, int64_t, int64_t,
                         const int32_t *, int32_t *);
#if TY_VF == 16
const Products by_rows[3][MAX_ROWS] = {
    {products<1, 1>, products<2, 1>, products<3, 1>, products<4, 1>, products<5, 1>, products<6, 1>,
     products<7, 1>},
    {products<1, 2>, products<2, 2>, products<3, 2>, products<4, 2>, products<5, 2>, products<6, 2>,
     products<7, 2>},
    {products<1, 4>, products<2, 4>, products<3, 4>, products<4, 4>, products<5, 4>, products<6, 4>,
     products<7, 4>}};
#else
const Products by_rows[1][MAX_ROWS] = {{products<1, 1>, products<2, 1>, products<3, 1>,
                                        products<4, 1>, products<5, 1>, products<6, 1>}};
#endif

// How many blocks of outputs are multiplied at once from block `from`.
TY_INLINE int64_t blocks_at(const Wino &w, int64_t from) {
  const int64_t rest = w.o_blocks - from;
  return rest >= 4 && MAX_BLOCKS == 4 ? 4 : rest >= 2 && MAX_BLOCKS == 4 ? 2 : 1;
}

void multiply(const Wino &w, const int16_t *v, int64_t tiles, int64_t o_block, int64_t blocks,
              int32_t *m) {
  const int64_t strips = ceil_div(tiles, MAX_ROWS), rows = ceil_div(tiles, strips);
  const int8_t *u = w.u + o_block * w.panel;
  for (int64_t f = 0; f < WINO_FREQUENCIES; ++f) {
    const int32_t *start = f == WINO_ONES ? w.start + o_block * 16 : nullptr;
    for (int64_t tile = 0; tile < tiles; tile += rows)
      by_rows[blocks / 2][lesser(rows, tiles - tile) - 1](
          v + f * w.v_step + tile * w.v_row, w.v_row, u + f * w.pairs * 64, w.panel, w.pairs,
          tile == 0 ? w.pairs * 64 : 0, start, m + tile * blocks * (TILE_PRODUCTS / 4) + f * 16);
  }
}

// Stores 16 outputs of four pixels in a row, of which `count` are there.
TY_INLINE void store_row(const Wino &w, const vf (&t)[4][Q8_PARTS], uint8_t *to, int64_t count) {
  if (!w.narrow.fits) {
    for (int64_t x = 0; x < count; ++x) {
      Q8Lanes found;
#pragma GCC unroll 2
      for (int i = 0; i < Q8_PARTS; ++i) found.part[i] = q8_finish(t[x][i], w.store);
      q8_store16(to + x * w.y_pixel, found, 16);
    }
    return;
  }
#if TY_VF == 16
  const vi whole[4] = {vf_to_vi(t[0][0]), vf_to_vi(t[1][0]), vf_to_vi(t[2][0]), vf_to_vi(t[3][0])};
  const vi order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const vi bytes = _mm512_permutexvar_epi32(order, q8_narrowed(whole, w.narrow));
  const __m128i pixels[4] = {_mm512_castsi512_si128(bytes), _mm512_extracti32x4_epi32(bytes, 1),
                             _mm512_extracti32x4_epi32(bytes, 2),
                             _mm512_extracti32x4_epi32(bytes, 3)};
#else
  const vi order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m128i pixels[4];
#pragma GCC unroll 2
  for (int x = 0; x < 4; x += 2) {
    const vi whole[4] = {vf_to_vi(t[x][0]), vf_to_vi(t[x][1]), vf_to_vi(t[x + 1][0]),
                         vf_to_vi(t[x + 1][1])};
    const vi bytes = _mm256_permutevar8x32_epi32(q8_narrowed(whole, w.narrow), order);
    pixels[x] = _mm256_castsi256_si128(bytes);
    pixels[x + 1] = _mm256_extracti128_si256(bytes, 1);
  }
#endif
#pragma GCC unroll 4
  for (int x = 0; x < 4; ++x)
    if (x < count) _mm_storeu_si128(reinterpret_cast<__m128i *>(to + x * w.y_pixel), pixels[x]);
}

// Transforms the products of a tile and 16 outputs back, and requantises and stores the pixels.
void finish_tile(const Wino &w, const int32_t *m, const Place &place, int64_t o) {
  const Q8ConvShape &s = w.s;
  const int64_t rows = lesser(WINO_OUT, s.oh - place.y);
  const int64_t columns = lesser(WINO_OUT, s.ow - place.x);
  vi sums[Q8_PARTS][4][4];
#pragma GCC unroll 2
  for (int i = 0; i < Q8_PARTS; ++i) wino_output(m + i * TY_VF, sums[i]);
  vi bias[Q8_PARTS];
  vf factor[Q8_PARTS];
  for (int i = 0; i < Q8_PARTS; ++i) {
    bias[i] = vi_load(w.bias + o + i * TY_VF);
    factor[i] = vload(w.multiplier + o + i * TY_VF);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = ((place.image * s.oh + place.y + r) * s.ow + place.x) * w.y_pixel + o;
    vf t[4][Q8_PARTS];
#pragma GCC unroll 4
    for (int x = 0; x < 4; ++x)
#pragma GCC unroll 2
      for (int i = 0; i < Q8_PARTS; ++i)
        t[x][i] = vmul(vi_to_vf(vi_add(sums[i][r][x], bias[i])), factor[i]);
    if (w.residual.data != nullptr)
      for (int64_t x = 0; x < columns; ++x) {
        const Q8Lanes stored =
            q8_load16(w.residual.data + at + x * w.y_pixel, 16, w.residual.is_signed);
#pragma GCC unroll 2
        for (int i = 0; i < Q8_PARTS; ++i) {
          const vi centred = vi_sub(stored.part[i], vi_set1(w.residual.zero_point));
          t[x][i] = vadd(t[x][i], vmul(vi_to_vf(centred), vset1(w.residual.multiplier)));
        }
      }
    store_row(w, t, w.y + at, columns);
  }
}

// Multiplies `tiles` transformed tiles from tile `first` with blocks of outputs, and finishes them.
void run_outputs(const Wino &w, const int16_t *v, int64_t first, int64_t tiles, int64_t o_block,
                 int64_t blocks, int32_t *m) {
  multiply(w, v, tiles, o_block, blocks, m);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const Place place = place_of(w, first + tile);
    for (int64_t b = 0; b < blocks; ++b)
      finish_tile(w, m + (tile * blocks + b) * (TILE_PRODUCTS / 4), place, (o_block + b) * 16);
  }
}

// The centres of sums go into what products start from, and come back with the bias; false where
// sums may lie too far from them.
bool centre(const Wino &w, const int8_t *direct, const int32_t *magnitudes, int64_t x_zero,
            int32_t *bias, int32_t *start) {
  const int64_t k4 = 9 * ceil_div(w.s.c, 4);
  const int64_t middle2 = (w.is_signed ? -1 : 255) - 2 * x_zero;
  for (int64_t o = 0; o < w.o_blocks * 16; ++o) {
    int32_t sum;
    __builtin_memcpy(&sum,
                     direct + o / 16 * q8_panel_bytes(k4) + q8_panel_rows(k4) * 64 + o % 16 * 4, 4);
    if (255 * static_cast<int64_t>(magnitudes[o]) + 4 >= int64_t{1} << 26) return false;
    const uint32_t middle = static_cast<uint32_t>(middle2 * sum / 2);
    start[o] = static_cast<int32_t>(0u - 36u * middle);
    bias[o] = static_cast<int32_t>(static_cast<uint32_t>(bias[o]) + middle);
  }
  return true;
}

// Threads take blocks of tiles, or share the transformed tiles of each and take groups of outputs.
void run_blocks(const ty_ctx *ctx, const Wino &w, char *own, int64_t v_bytes, int64_t m_bytes) {
  const int64_t share = v_bytes + m_bytes;
  if (ctx->threads == 1 || w.blocks >= ctx->threads) {
    ty_parallel(ctx, w.blocks, 1, [&](int64_t begin, int64_t end, int32_t slot) {
      int16_t *v = reinterpret_cast<int16_t *>(own + slot * share);
      int32_t *m = reinterpret_cast<int32_t *>(own + slot * share + v_bytes);
      for (int64_t at = begin; at < end; ++at) {
        const int64_t first = at * w.block, tiles = lesser(w.block, w.tiles - first);
        transform(w, first, 0, tiles, v);
        for (int64_t o = 0; o < w.o_blocks;) {
          const int64_t blocks = blocks_at(w, o);
          run_outputs(w, v, first, tiles, o, blocks, m);
          o += blocks;
        }
      }
    });
    return;
  }
  int16_t *v = reinterpret_cast<int16_t *>(own);
  for (int64_t at = 0; at < w.blocks; ++at) {
    const int64_t first = at * w.block, tiles = lesser(w.block, w.tiles - first);
    ty_parallel(ctx, tiles, 4,
                [&](int64_t begin, int64_t end, int32_t) { transform(w, first, begin, end, v); });
    ty_parallel(ctx, ceil_div(w.o_blocks, MAX_BLOCKS), 1,
                [&](int64_t begin, int64_t end, int32_t slot) {
                  int32_t *m = reinterpret_cast<int32_t *>(own + slot * share + v_bytes);
                  int64_t o = begin * MAX_BLOCKS;
                  while (o < lesser(end * MAX_BLOCKS, w.o_blocks)) {
                    const int64_t blocks = blocks_at(w, o);
                    run_outputs(w, v, first, tiles, o, blocks, m);
                    o += blocks;
                  }
                });
  }
}

int run(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
        void *workspace) {
  const auto &a = *reinterpret_cast<const ty_conv2d_quantized_attrs *>(attrs);
  Wino w = {};
  w.s = q8_conv_shape(a, inputs, outputs[0]);
  const Q8ConvShape &s = w.s;
  if (s.n * s.o * s.oh * s.ow == 0) return 0;
  plan_tiles(&w, ctx->threads);
  w.is_signed = inputs[0].dtype == TY_INT8;
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  Q8Columns columns = {static_cast<int32_t *>(scratch.take(q8_columns_bytes(s.o))), nullptr,
                       static_cast<float *>(scratch.take(q8_columns_bytes(s.o)))};
  int32_t *start = static_cast<int32_t *>(scratch.take(q8_columns_bytes(s.o)));
  int next = 2;
  const int32_t *bias = a.has_bias ? static_cast<const int32_t *>(inputs[next++].data) : nullptr;
  q8_fill_columns(columns,
                  {bias, TY_FLOATS(&a, a.multipliers), nullptr, a.multipliers.count, 0, s.o, 0});
  const int8_t *direct = static_cast<const int8_t *>(inputs[1].data);
  const int8_t *after = direct + q8_packed_bytes(s.o, 9 * ceil_div(s.c, 4));
  const auto *magnitudes = static_cast<const int32_t *>(static_cast<const void *>(after));
  if (!centre(w, direct, magnitudes, a.x_zero_point, columns.bias, start))
    return q8_conv_packed(ctx, inputs, outputs, attrs, workspace);
  w.u = after + w.o_blocks * 64;
  w.start = start;
  w.bias = columns.bias;
  w.multiplier = columns.multiplier;
  w.x = static_cast<const uint8_t *>(inputs[0].data);
  uint8_t *line = static_cast<uint8_t *>(scratch.take(w.channels));
  __builtin_memset(line, static_cast<int>(a.x_zero_point & 0xff), static_cast<size_t>(w.channels));
  w.line = line;
  w.zero = static_cast<int16_t>(36 * a.x_zero_point);
  w.store = q8_store_of(a);
  if (a.has_residual)
    w.residual = {static_cast<const uint8_t *>(inputs[next].data), inputs[next].dtype == TY_INT8,
                  static_cast<int32_t>(a.residual_zero_point),
                  static_cast<float>(a.residual_multiplier)};
  // Below a quarter of 2^32 each, the two terms of a result add up to an int32.
  w.narrow = q8_narrow(w.store,
                       q8_largest(columns.multiplier, s.o) < 0.25f && w.residual.multiplier < 1e6f);
  w.y = static_cast<uint8_t *>(outputs[0].data);
  w.y_pixel = q8_channels(s.o);
  const int64_t v_bytes = WINO_FREQUENCIES * w.v_step * 2;
  const int64_t m_bytes = w.block * MAX_BLOCKS * TILE_PRODUCTS;
  run_blocks(ctx, w, static_cast<char *>(scratch.take(0)), v_bytes, m_bytes);
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_winograd, TY_KERNEL(run, "conv2d_q8", "winograd_f43"),
                  TY_KERNEL(run, "conv2d_q8", "winograd_f43_unbiased"))

// The product of packed 8-bit operands in tiles of pixels and outputs, finished while in registers.
#include "int8_values.hpp"

namespace TY_ISA {
namespace {

#if defined(__AVX512VNNI__)
// Scaled residuals of 64 outputs, 16 at a time. A byte under the upper half of 2^23 is that number
// and the byte, exactly.
struct Residuals {
  vi low, high;
  vf zero_point, multiplier;
};
TY_INLINE vf residual_of(const Residuals &r, int n) {
  const vi upper = vi_set1(0x4b004b00), pairs = n < 2 ? r.low : r.high;
  const vi wide =
      n % 2 == 0 ? _mm512_unpacklo_epi16(pairs, upper) : _mm512_unpackhi_epi16(pairs, upper);
  return vmul(vsub(vi_as_vf(wide), r.zero_point), r.multiplier);
}
TY_INLINE Residuals residuals_at(const Q8Residual &r, int64_t at, __mmask64 mask, vi order) {
  const vi flip = vi_set1(r.is_signed ? static_cast<int32_t>(0x80808080u) : 0);
  const vi bytes =
      _mm512_permutexvar_epi32(order, vi_xor(_mm512_maskz_loadu_epi8(mask, r.data + at), flip));
  const int32_t zero = (1 << 23) + r.zero_point + (r.is_signed ? 128 : 0);
  return {_mm512_unpacklo_epi8(bytes, vi_set1(0)), _mm512_unpackhi_epi8(bytes, vi_set1(0)),
          vset1(static_cast<float>(zero)), vset1(r.multiplier)};
}

// Multiplies, rounds and stores the sums of a tile where no zero points of weights add to them.
template <int MR, int NR, bool RESIDUAL>
TY_INLINE void store_narrow(const Q8Plan &p, const __m512i (&sums)[MR][NR], int64_t first,
                            int64_t o) {
  const vi order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const int64_t room = p.o_room - o;
  const __mmask64 whole_mask = ~__mmask64{0} >> (64 - 16 * NR);
  const __mmask64 mask = room >= 16 * NR ? whole_mask : (__mmask64{1} << room) - 1;
  const Q8Residual residual = p.residual;
  const Q8Narrow narrow = p.narrow;
  const float *multiplier = p.multiplier + o;
  const int64_t y_pixel = p.y_pixel;
  int64_t at = first * p.y_pixel + o;
  uint8_t *to = p.y + at;
#pragma GCC unroll 12
  for (int m = 0; m < MR; ++m, at += y_pixel, to += y_pixel) {
    Residuals residuals = {};
    if (RESIDUAL) residuals = residuals_at(residual, at, mask, order);
    vi whole[4] = {vi_set1(0), vi_set1(0), vi_set1(0), vi_set1(0)};
#pragma GCC unroll 4
    for (int n = 0; n < NR; ++n) {
      vf t = vmul(vi_to_vf(sums[m][n]), vload(multiplier + 16 * n));
      if (RESIDUAL) t = vadd(t, residual_of(residuals, n));
      whole[n] = vf_to_vi(t);
    }
    const vi bytes = _mm512_permutexvar_epi32(order, q8_narrowed(whole, narrow));
    if (NR == 4 && room >= 64)
      _mm512_storeu_si512(to, bytes);
    else if (NR == 2 && room >= 32)
      _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), _mm512_castsi512_si256(bytes));
    else if (NR == 1 && room >= 16)
      _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm512_castsi512_si128(bytes));
    else
      _mm512_mask_storeu_epi8(to, mask, bytes);
  }
}

// Rounds and stores the sums of a tile.
template <int MR, int NR, bool RESIDUAL>
TY_INLINE void store_tile(const Q8Plan &p, const __m512i (&sums)[MR][NR], int64_t first,
                          int64_t o) {
  if (p.narrow.fits) {
    store_narrow<MR, NR, RESIDUAL>(p, sums, first, o);
    return;
  }
  alignas(64) int32_t found[MR * NR * 16];
#pragma GCC unroll 12
  for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < NR; ++n) vi_store(found + (m * NR + n) * 16, sums[m][n]);
  q8_finish_rows(p, found, MR, NR, first, o);
}

// One tile: MR pixels from `first`, NR blocks of 16 outputs from output `o`. What lies `ahead`
// bytes behind the weights is fetched into the second-level cache.
template <int MR, int NR, bool RESIDUAL>
void tile(const Q8Plan &p, const Operand *const *rows, int64_t first, int64_t o, int64_t ahead) {
  const int64_t panel = p.panel;
  const int8_t *w = p.weight + o / 16 * panel;
  __m512i sums[MR][NR];
#pragma GCC unroll 12
  for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < NR; ++n) sums[m][n] = vi_load(p.bias + o + 16 * n);
  for (int64_t run = 0; run < p.n_runs; ++run) {
    const int64_t offset = p.runs[run].offset, k4 = p.runs[run].k4;
    const Operand *x[MR];
#pragma GCC unroll 12
    for (int m = 0; m < MR; ++m) x[m] = rows[m] + offset;
    for (int64_t k = 0; k < k4; ++k, w += 64) {
      _mm_prefetch(reinterpret_cast<const char *>(w + ahead), _MM_HINT_T1);
      __m512i weight[NR];
#pragma GCC unroll 4
      for (int n = 0; n < NR; ++n) weight[n] = _mm512_loadu_si512(w + n * panel);
#pragma GCC unroll 12
      for (int m = 0; m < MR; ++m) {
        const __m512i four = _mm512_set1_epi32(q8_load32(x[m] + 4 * k));
#pragma GCC unroll 4
        for (int n = 0; n < NR; ++n) sums[m][n] = _mm512_dpbusd_epi32(sums[m][n], four, weight[n]);
      }
    }
  }
  store_tile<MR, NR, RESIDUAL>(p, sums, first, o);
}

// Adds the products of the terms [k, end) of a run, of which the weights lie at `w`, to the sums of
// the pixels [FROM, TO).
template <int FROM, int TO, int MR, int NR>
TY_INLINE void add_products(__m512i (&sums)[MR][NR], const Operand *const (&x)[MR], int64_t k,
                            int64_t end, const int8_t *w, int64_t panel) {
  for (; k < end; ++k) {
    __m512i weight[NR];
#pragma GCC unroll 4
    for (int n = 0; n < NR; ++n) weight[n] = _mm512_loadu_si512(w + k * 64 + n * panel);
#pragma GCC unroll 12
    for (int m = FROM; m < TO; ++m) {
      const __m512i four = _mm512_set1_epi32(q8_load32(x[m] + 4 * k));
#pragma GCC unroll 4
      for (int n = 0; n < NR; ++n) sums[m][n] = _mm512_dpbusd_epi32(sums[m][n], four, weight[n]);
    }
  }
}

// A tile of pixels of one row, without the taps that lie beyond the image: rows of the kernel, the
// first tap of the first pixel and the last one of the last.
template <int MR, int NR, bool RESIDUAL>
void tile_at_border(const Q8Plan &p, const Operand *rows, int64_t first, int64_t o, int64_t oy,
                    int64_t ox) {
  const int64_t panel = p.panel, tap = p.border.tap;
  const bool left = p.border.left && ox == 0, right = p.border.right && ox + MR == p.ow;
  const int8_t *w = p.weight + o / 16 * panel;
  __m512i sums[MR][NR];
#pragma GCC unroll 12
  for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < NR; ++n) sums[m][n] = vi_load(p.bias + o + 16 * n);
  int64_t y = oy * p.border.step - p.border.top;
  for (int64_t run = 0; run < p.n_runs; w += p.runs[run].k4 * 64, y += p.border.tall, ++run) {
    if (y < 0 || y >= p.border.h) continue;
    const int64_t k4 = p.runs[run].k4, from = left ? tap : 0, to = right ? k4 - tap : k4;
    const Operand *x[MR];
#pragma GCC unroll 12
    for (int m = 0; m < MR; ++m) x[m] = rows + m * p.pixel + p.runs[run].offset;
    if (left) add_products<1, MR>(sums, x, 0, from, w, panel);
    add_products<0, MR>(sums, x, from, to, w, panel);
    if (right) add_products<0, MR - 1>(sums, x, to, k4, w, panel);
  }
  store_tile<MR, NR, RESIDUAL>(p, sums, first, o);
}

typedef void (*Tile)(const Q8Plan &, const Operand *const *, int64_t, int64_t, int64_t);
struct Height {
  int rows;
  Tile tile;
};
// Pieces of a multiple of WHOLE_ROWS pixels consist of the highest tiles only; planes whose edge is
// a multiple of 7 do too.
enum { MAX_ROWS = 12, MAX_BLOCKS = 4, WHOLE_ROWS = 56 };
#define Q8_HEIGHTS(high, NR, residual)                                                          \
  {                                                                                             \
    {high, tile<high, NR, residual>}, {4, tile<4, NR, residual>}, {2, tile<2, NR, residual>}, { \
      1, tile<1, NR, residual>                                                                  \
    }                                                                                           \
  }
#define Q8_BLOCKS(residual)                                                            \
  {Q8_HEIGHTS(8, 1, residual), Q8_HEIGHTS(8, 2, residual), Q8_HEIGHTS(7, 3, residual), \
   Q8_HEIGHTS(7, 4, residual)}
const Height heights[2][MAX_BLOCKS][4] = {Q8_BLOCKS(false), Q8_BLOCKS(true)};

// Pixels [begin, end) by all blocks of outputs from output `o`, where tiles of 7 pixels do not
// leave a row of the image and thus can leave out what lies beyond it; false where they do not.
bool run_at_border(const Q8Plan &p, int64_t begin, int64_t end, int64_t o, int64_t blocks) {
  enum { ROWS = 7 };
  if (!p.border.known || p.ow % ROWS + begin % ROWS + end % ROWS > 0) return false;
  if (blocks < MAX_BLOCKS) return false;
  const auto tile = p.residual.data != nullptr ? tile_at_border<ROWS, MAX_BLOCKS, true>
                                               : tile_at_border<ROWS, MAX_BLOCKS, false>;
  for (int64_t at = begin; at < end; at += ROWS) {
    const int64_t ox = at % p.ow, oy = at / p.ow % p.oh, image = at / (p.ow * p.oh);
    tile(p, p.x + image * p.image + oy * p.row + ox * p.pixel, at, o, oy, ox);
  }
  return true;
}
#else
TY_INLINE bool run_at_border(const Q8Plan &, int64_t, int64_t, int64_t, int64_t) { return false; }

// The scaled residual of 16 outputs, of which `count` are there.
TY_INLINE Scaled residual_at(const Q8Plan &p, int64_t at, int64_t count) {
  return scaled(p.residual.data + at, count, p.residual.is_signed, p.residual.zero_point,
                p.residual.multiplier);
}

TY_INLINE int64_t load64(const void *from) {
  int64_t value;
  __builtin_memcpy(&value, from, 8);
  return value;
}

// Multiplies, rounds and stores 16 sums of each pixel where no zero points of weights add to them;
// two pixels make a vector of bytes.
template <bool RESIDUAL>
TY_INLINE void store_narrow(const Q8Plan &p, const int32_t *sums, int rows, int64_t first,
                            int64_t o) {
  const vi order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const vf low = vload(p.multiplier + o), high = vload(p.multiplier + o + 8);
  for (int m = 0; m < rows; m += 2) {
    const int32_t *at = sums + m * 16, *next = sums + (m + 1 < rows ? m + 1 : m) * 16;
    const int64_t pixel = (first + m) * p.y_pixel + o;
    vf t[4] = {vmul(vi_to_vf(vi_load(at)), low), vmul(vi_to_vf(vi_load(at + 8)), high),
               vmul(vi_to_vf(vi_load(next)), low), vmul(vi_to_vf(vi_load(next + 8)), high)};
    if (RESIDUAL) {
      const Scaled here = residual_at(p, pixel, 16);
      const Scaled there = m + 1 < rows ? residual_at(p, pixel + p.y_pixel, 16) : here;
      t[0] = vadd(t[0], here.part[0]);
      t[1] = vadd(t[1], here.part[1]);
      t[2] = vadd(t[2], there.part[0]);
      t[3] = vadd(t[3], there.part[1]);
    }
    const vi whole[4] = {vf_to_vi(t[0]), vf_to_vi(t[1]), vf_to_vi(t[2]), vf_to_vi(t[3])};
    // Fours of one pixel, then of the other, in each half.
    const vi bytes = q8_narrowed(whole, p.narrow);
    const vi pixels = _mm256_permutevar8x32_epi32(bytes, order);
    uint8_t *to = p.y + pixel;
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm256_castsi256_si128(pixels));
    if (m + 1 < rows)
      _mm_storeu_si128(reinterpret_cast<__m128i *>(to + p.y_pixel),
                       _mm256_extracti128_si256(pixels, 1));
  }
}

// One tile: MR pixels from `first`, 16 outputs from output `o`.
template <int MR, int NR, bool RESIDUAL>
void tile(const Q8Plan &p, const Operand *const *rows, int64_t first, int64_t o, int64_t ahead) {
  static_assert(NR == 1, "8 outputs of up to 6 pixels fill the registers");
  alignas(32) int32_t found[MR * 16];
  // The second half of the last block may hold no output; what is stored for it does not count.
  const int halves = p.o - o > 8 ? 2 : 1;
  if (halves < 2)
    for (int m = 0; m < MR; ++m) vi_store(found + m * 16 + 8, vi_set1(0));
  for (int half = 0; half < halves; ++half) {
    const int8_t *w = p.weight + o / 16 * p.panel + 32 * half;
    __m256i sums[MR][2];  // of 4 outputs, two partial sums each
#pragma GCC unroll 6
    for (int m = 0; m < MR; ++m) sums[m][0] = sums[m][1] = _mm256_setzero_si256();
    for (int64_t run = 0; run < p.n_runs; ++run) {
      const int64_t offset = p.runs[run].offset, k4 = p.runs[run].k4;
      const Operand *x[MR];
#pragma GCC unroll 6
      for (int m = 0; m < MR; ++m) x[m] = rows[m] + offset;
      for (int64_t k = 0; k < k4; ++k, w += 64) {
        _mm_prefetch(reinterpret_cast<const char *>(w + ahead), _MM_HINT_T1);
        const __m256i low = _mm256_cvtepi8_epi16(q8_load128(w));
        const __m256i high = _mm256_cvtepi8_epi16(q8_load128(w + 16));
#pragma GCC unroll 6
        for (int m = 0; m < MR; ++m) {
          const __m256i four = _mm256_set1_epi64x(load64(x[m] + 4 * k));
          sums[m][0] = _mm256_add_epi32(sums[m][0], _mm256_madd_epi16(four, low));
          sums[m][1] = _mm256_add_epi32(sums[m][1], _mm256_madd_epi16(four, high));
        }
      }
    }
    const vi bias = vi_load(p.bias + o + half * 8);
#pragma GCC unroll 6
    for (int m = 0; m < MR; ++m)
      vi_store(
          found + m * 16 + half * 8,
          vi_add(bias, _mm256_permute4x64_epi64(_mm256_hadd_epi32(sums[m][0], sums[m][1]), 0xd8)));
  }
  if (p.narrow.fits && p.o_room - o >= 16)
    store_narrow<RESIDUAL>(p, found, MR, first, o);
  else
    q8_finish_rows(p, found, MR, 1, first, o);
}

typedef void (*Tile)(const Q8Plan &, const Operand *const *, int64_t, int64_t, int64_t);
struct Height {
  int rows;
  Tile tile;
};
enum { MAX_ROWS = 6, MAX_BLOCKS = 1, WHOLE_ROWS = 24 };
#define Q8_HEIGHTS(residual)                                                             \
  {                                                                                      \
    {                                                                                    \
      {6, tile<6, 1, residual>}, {4, tile<4, 1, residual>}, {2, tile<2, 1, residual>}, { \
        1, tile<1, 1, residual>                                                          \
      }                                                                                  \
    }                                                                                    \
  }
const Height heights[2][MAX_BLOCKS][4] = {Q8_HEIGHTS(false), Q8_HEIGHTS(true)};
#endif

// Pixels [begin, end) of all images by up to MAX_BLOCKS blocks of outputs from output `o`.
void run_pixels(const Q8Plan &p, int64_t begin, int64_t end, int64_t o, int64_t blocks) {
  const Height *height = heights[p.residual.data != nullptr][blocks - 1];
  // The first tiles fetch the weights of the next outputs, a panel each. Long ones arrive unasked.
  int64_t ahead = o + 16 * blocks < p.o && p.k4 <= 256 ? blocks : 0;
  int64_t ox = begin % p.ow, oy = begin / p.ow % p.oh, image = begin / (p.ow * p.oh);
  for (int64_t at = begin; at < end;) {
    while (height->rows > end - at) ++height;
    const Operand *rows[MAX_ROWS];
    for (int m = 0; m < height->rows; ++m) {
      rows[m] = p.x + image * p.image + oy * p.row + ox * p.pixel;
      if (++ox == p.ow) {
        ox = 0;
        if (++oy == p.oh) {
          oy = 0;
          ++image;
        }
      }
    }
    height->tile(p, rows, at, o, ahead * p.panel);
    at += height->rows;
    ahead = ahead > 0 && ahead < 2 * blocks - 1 ? ahead + 1 : 0;
  }
}

// Groups of up to MAX_BLOCKS blocks of outputs, chunks of whole units of pixels, and whether a
// thread's share of neighbouring items is outputs of all pixels or pixels with all outputs.
struct Cut {
  int64_t groups, chunks, unit;
  bool by_outputs;
};

// Pixels of a thread from which on it may take pixels, and how many bytes of weights cost as much
// as one that passes between cores.
enum { ENOUGH = 24, DEARER = 6 };

// Threads take pixels, which the layers around do too, so that each reads all weights but finds its
// pixels in its own cache. Where weights are much larger than the images, or pixels few, they take
// outputs, and read their own weights only. What another core wrote is fetched dearly, and so is
// leave to write again what another core has read.
Cut cut_of(const ty_ctx *ctx, const Q8Plan &p, int64_t chunks) {
  const int64_t threads = ctx->threads, pixels = p.n * p.oh * p.ow, blocks = ceil_div(p.o, 16);
  const int64_t groups = ceil_div(blocks, MAX_BLOCKS);
  const int64_t unit = pixels < 2 * WHOLE_ROWS ? 1 : WHOLE_ROWS / 4, units = ceil_div(pixels, unit);
  const auto even = [&](int64_t wanted) {
    const int64_t found = ceil_div(chunks > wanted ? chunks : wanted, threads) * threads;
    return lesser(found, units);
  };
  if (threads <= 1) return {groups, chunks, WHOLE_ROWS, true};
  const int64_t weights = p.o * p.k4 * 4, inputs = p.n * p.image;
  const bool wide = pixels >= ENOUGH * threads && weights <= DEARER * (inputs + pixels * p.o);
  if (groups < threads || weights <= inputs || wide)
    return {groups, even(unit > 1 ? 2 * threads : threads), unit, false};
  const int64_t more = round_up(groups, threads);
  if (more <= blocks) return {more, chunks, unit, true};
  return {groups, groups * chunks % threads ? even(threads) : chunks, unit, true};
}

// The first block of outputs of a group.
TY_INLINE int64_t block_of(const Cut &cut, int64_t blocks, int64_t group) {
  const bool whole = cut.groups == ceil_div(blocks, MAX_BLOCKS);
  return whole ? lesser(group * MAX_BLOCKS, blocks) : group * blocks / cut.groups;
}

}  // namespace

void q8_run(const ty_ctx *ctx, const Q8Plan &given) {
  Q8Plan p = given;
  p.panel = q8_panel_bytes(p.k4);
  const int64_t pixels = p.n * p.oh * p.ow;
  if (pixels <= 0 || p.o <= 0) return;
  // Below a quarter of 2^32 each, a scaled sum and a residual add up to an int32.
  const bool fits = q8_largest(p.multiplier, p.o) < 0.25f &&
                    (p.residual.data == nullptr || p.residual.multiplier < 1e6f);
  p.narrow = q8_narrow(p.store, fits && p.w_zero == nullptr && p.floats == nullptr);
  // A piece's rows should stay in the first caches while the weights of its outputs pass by.
  const int64_t bytes = p.k4 * 4 * static_cast<int64_t>(sizeof(Operand));
  int64_t chunk = 96 * 1024 / (bytes + 1) / WHOLE_ROWS * WHOLE_ROWS;
  chunk = chunk < WHOLE_ROWS ? static_cast<int64_t>(WHOLE_ROWS)
                             : lesser(chunk, 384 / WHOLE_ROWS * WHOLE_ROWS);
  const Cut cut = cut_of(ctx, p, ceil_div(pixels, chunk));
  const int64_t items = cut.groups * cut.chunks, units = ceil_div(pixels, cut.unit);
  const int64_t blocks = ceil_div(p.o, 16);
  const int64_t work = ceil_div(pixels, cut.chunks) * MAX_BLOCKS * 64 * p.k4;
  const int64_t grain = even_grain(ctx, items, 1 + 400000 / (work + 1));
  ty_parallel(ctx, items, grain, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t group = cut.by_outputs ? item / cut.chunks : item % cut.groups;
      const int64_t at = cut.by_outputs ? item % cut.chunks : item / cut.groups;
      const int64_t block = block_of(cut, blocks, group);
      const int64_t some = block_of(cut, blocks, group + 1) - block;
      const int64_t from = at * units / cut.chunks * cut.unit;
      const int64_t to = lesser((at + 1) * units / cut.chunks * cut.unit, pixels);
      if (!run_at_border(p, from, to, block * 16, some)) run_pixels(p, from, to, block * 16, some);
    }
  });
}

}  // namespace TY_ISA

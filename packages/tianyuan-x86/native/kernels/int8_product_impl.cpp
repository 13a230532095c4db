// The product of packed 8-bit operands in tiles of pixels and outputs, finished while in registers.
#include "int8.hpp"

namespace TY_ISA {
namespace {

TY_INLINE int32_t load32(const void *from) {
  int32_t value;
  __builtin_memcpy(&value, from, 4);
  return value;
}

TY_INLINE int64_t load64(const void *from) {
  int64_t value;
  __builtin_memcpy(&value, from, 8);
  return value;
}

TY_INLINE __m128i load128(const int8_t *from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
}

// Multiplier, residual, rounding and clamping of a tile's sums, 16 outputs after another.
__attribute__((noinline)) void finish(const Q8Plan &p, const int32_t *sums, int rows, int blocks,
                                      int64_t first, int64_t o) {
  for (int block = 0; block < blocks; ++block, o += 16) {
    const int64_t count = p.o_room - o;
    for (int m = 0; m < rows; ++m) {
      const int64_t pixel = first + m, at = pixel * p.y_pixel + o;
      Q8Lanes residual = {}, result;
      if (p.residual.data != nullptr)
        residual = q8_load16(p.residual.data + at, count, p.residual.is_signed);
#pragma GCC unroll 2
      for (int i = 0; i < Q8_PARTS; ++i) {
        const int64_t lane = o + i * TY_VF;
        vi sum = vi_load(sums + (m * blocks + block) * 16 + i * TY_VF);
        if (p.w_zero != nullptr)
          sum = vi_sub(sum, vi_mul(vi_load(p.w_zero + lane), vi_set1(p.row_sums[pixel])));
        vf t = vmul(vi_to_vf(sum), vload(p.multiplier + lane));
        if (p.residual.data != nullptr) {
          const vi centred = vi_sub(residual.part[i], vi_set1(p.residual.zero_point));
          t = vadd(t, vmul(vi_to_vf(centred), vset1(p.residual.multiplier)));
        }
        result.part[i] = q8_finish(t, p.store);
      }
      q8_store16(p.y + at, result, count);
    }
  }
}

// Multiplier and bias of a tile's sums that stay floats.
__attribute__((noinline)) void finish_floats(const Q8Plan &p, const int32_t *sums, int rows,
                                             int blocks, int64_t first, int64_t o) {
  for (int i = 0; i < blocks * Q8_PARTS; ++i) {
    const int64_t lane = o + i * TY_VF, count = p.o_room - lane;
    if (count <= 0) return;
    const vf factor = vload(p.multiplier + lane);
    const vf add = p.add != nullptr ? vload(p.add + lane) : vset1(0.0f);
    const vtail tail = vtail_of(q8_lesser(count, TY_VF));
    for (int m = 0; m < rows; ++m) {
      vf t = vmul(vi_to_vf(vi_load(sums + m * blocks * 16 + i * TY_VF)), factor);
      if (p.add != nullptr) t = vadd(t, add);
      float *to = p.floats + (first + m) * p.y_pixel + lane;
      if (count >= TY_VF)
        vstore(to, t);
      else
        vstore_tail(to, t, tail);
    }
  }
}

#if defined(__AVX512VNNI__)
// Multiplies, rounds and stores the sums of a tile where no residual and no zero points of weights
// add to them.
template <int MR, int NR>
TY_INLINE void store_narrow(const Q8Plan &p, const __m512i (&sums)[MR][NR], int64_t first,
                            int64_t o) {
  const vi order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const int64_t room = p.o_room - o;
  const __mmask64 mask = room >= 64 ? ~__mmask64{0} : (__mmask64{1} << room) - 1;
#pragma GCC unroll 12
  for (int m = 0; m < MR; ++m) {
    vi whole[4];
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n)
      whole[n] = n < NR
                     ? vf_to_vi(vmul(vi_to_vf(sums[m][n % NR]), vload(p.multiplier + o + 16 * n)))
                     : vi_set1(0);
    const vi bytes = _mm512_permutexvar_epi32(order, q8_narrowed(whole, p.narrow));
    uint8_t *to = p.y + (first + m) * p.y_pixel + o;
    if (NR == 4 && room >= 64)
      _mm512_storeu_si512(to, bytes);
    else if (NR == 2 && room >= 32)
      _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), _mm512_castsi512_si256(bytes));
    else if (NR == 1 && room >= 16)
      _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm512_castsi512_si128(bytes));
    else
      _mm512_mask_storeu_epi8(to, mask & (~__mmask64{0} >> (64 - 16 * NR)), bytes);
  }
}

// One tile: MR pixels from `first`, NR blocks of 16 outputs from output `o`.
template <int MR, int NR>
void tile(const Q8Plan &p, const Operand *const *rows, int64_t first, int64_t o) {
  const int64_t panel = (p.k4 + 1) * 64;
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
      __m512i weight[NR];
#pragma GCC unroll 4
      for (int n = 0; n < NR; ++n) weight[n] = _mm512_loadu_si512(w + n * panel);
#pragma GCC unroll 12
      for (int m = 0; m < MR; ++m) {
        const __m512i four = _mm512_set1_epi32(load32(x[m] + 4 * k));
#pragma GCC unroll 4
        for (int n = 0; n < NR; ++n) sums[m][n] = _mm512_dpbusd_epi32(sums[m][n], four, weight[n]);
      }
    }
  }
  if (p.narrow.fits) {
    store_narrow(p, sums, first, o);
    return;
  }
  alignas(64) int32_t found[MR * NR * 16];
#pragma GCC unroll 12
  for (int m = 0; m < MR; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < NR; ++n) vi_store(found + (m * NR + n) * 16, sums[m][n]);
  if (p.floats != nullptr)
    finish_floats(p, found, MR, NR, first, o);
  else
    finish(p, found, MR, NR, first, o);
}

typedef void (*Tile)(const Q8Plan &, const Operand *const *, int64_t, int64_t);
struct Height {
  int rows;
  Tile tile;
};
// Pieces of a multiple of WHOLE_ROWS pixels consist of the highest tiles only; planes whose edge is
// a multiple of 7 do too.
enum { MAX_ROWS = 12, MAX_BLOCKS = 4, WHOLE_ROWS = 56 };
const Height heights[MAX_BLOCKS][4] = {
    {{8, tile<8, 1>}, {4, tile<4, 1>}, {2, tile<2, 1>}, {1, tile<1, 1>}},
    {{8, tile<8, 2>}, {4, tile<4, 2>}, {2, tile<2, 2>}, {1, tile<1, 2>}},
    {{7, tile<7, 3>}, {4, tile<4, 3>}, {2, tile<2, 3>}, {1, tile<1, 3>}},
    {{7, tile<7, 4>}, {4, tile<4, 4>}, {2, tile<2, 4>}, {1, tile<1, 4>}}};
#else
// Multiplies, rounds and stores 16 sums of each pixel where no residual and no zero points of
// weights add to them; two pixels make a vector of bytes.
TY_INLINE void store_narrow(const Q8Plan &p, const int32_t *sums, int rows, int64_t first,
                            int64_t o) {
  const vi order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const vf low = vload(p.multiplier + o), high = vload(p.multiplier + o + 8);
  for (int m = 0; m < rows; m += 2) {
    const int32_t *at = sums + m * 16, *next = sums + (m + 1 < rows ? m + 1 : m) * 16;
    const vi whole[4] = {vf_to_vi(vmul(vi_to_vf(vi_load(at)), low)),
                         vf_to_vi(vmul(vi_to_vf(vi_load(at + 8)), high)),
                         vf_to_vi(vmul(vi_to_vf(vi_load(next)), low)),
                         vf_to_vi(vmul(vi_to_vf(vi_load(next + 8)), high))};
    // Fours of one pixel, then of the other, in each half.
    const vi bytes = q8_narrowed(whole, p.narrow);
    const vi pixels = _mm256_permutevar8x32_epi32(bytes, order);
    uint8_t *to = p.y + (first + m) * p.y_pixel + o;
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm256_castsi256_si128(pixels));
    if (m + 1 < rows)
      _mm_storeu_si128(reinterpret_cast<__m128i *>(to + p.y_pixel),
                       _mm256_extracti128_si256(pixels, 1));
  }
}

// One tile: MR pixels from `first`, 16 outputs from output `o`.
template <int MR, int NR>
void tile(const Q8Plan &p, const Operand *const *rows, int64_t first, int64_t o) {
  static_assert(NR == 1, "8 outputs of up to 6 pixels fill the registers");
  alignas(32) int32_t found[MR * 16];
  for (int half = 0; half < 2; ++half) {
    const int8_t *w = p.weight + o / 16 * (p.k4 + 1) * 64 + 32 * half;
    __m256i sums[MR][2];  // of 4 outputs, two partial sums each
#pragma GCC unroll 6
    for (int m = 0; m < MR; ++m) sums[m][0] = sums[m][1] = _mm256_setzero_si256();
    for (int64_t run = 0; run < p.n_runs; ++run) {
      const int64_t offset = p.runs[run].offset, k4 = p.runs[run].k4;
      const Operand *x[MR];
#pragma GCC unroll 6
      for (int m = 0; m < MR; ++m) x[m] = rows[m] + offset;
      for (int64_t k = 0; k < k4; ++k, w += 64) {
        const __m256i low = _mm256_cvtepi8_epi16(load128(w));
        const __m256i high = _mm256_cvtepi8_epi16(load128(w + 16));
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
    store_narrow(p, found, MR, first, o);
  else if (p.floats != nullptr)
    finish_floats(p, found, MR, 1, first, o);
  else
    finish(p, found, MR, 1, first, o);
}

typedef void (*Tile)(const Q8Plan &, const Operand *const *, int64_t, int64_t);
struct Height {
  int rows;
  Tile tile;
};
enum { MAX_ROWS = 6, MAX_BLOCKS = 1, WHOLE_ROWS = 24 };
const Height heights[MAX_BLOCKS][4] = {
    {{6, tile<6, 1>}, {4, tile<4, 1>}, {2, tile<2, 1>}, {1, tile<1, 1>}}};
#endif

// Pixels [begin, end) of all images by up to MAX_BLOCKS blocks of outputs from output `o`.
void run_pixels(const Q8Plan &p, int64_t begin, int64_t end, int64_t o) {
  const int64_t blocks = q8_lesser(q8_ceil(p.o - o, 16), MAX_BLOCKS);
  const Height *height = heights[blocks - 1];
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
    height->tile(p, rows, at, o);
    at += height->rows;
  }
}

// Sums of the weights of a panel, by output, into its last row.
void sum_panel(int8_t *panel, int64_t k4) {
  vi sums[Q8_PARTS];
  for (int i = 0; i < Q8_PARTS; ++i) sums[i] = vi_set1(0);
  for (int64_t k = 0; k < k4; ++k)
    for (int i = 0; i < Q8_PARTS; ++i) {
#if defined(__AVX512VNNI__)
      sums[i] =
          _mm512_dpbusd_epi32(sums[i], _mm512_set1_epi8(1), _mm512_loadu_si512(panel + 64 * k));
#else
      // Pairs of bytes times 1 stay within int16.
      const vi row = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(panel + 64 * k + 32 * i));
      const vi pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), row);
      sums[i] = vi_add(sums[i], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
    }
  for (int i = 0; i < Q8_PARTS; ++i)
    vi_store(reinterpret_cast<int32_t *>(panel + 64 * k4) + i * TY_VF, sums[i]);
}

TY_INLINE void store128(int8_t *to, __m128i x) {
  _mm_storeu_si128(reinterpret_cast<__m128i *>(to), x);
}

// Four terms of 16 outputs that lie next to each other, term by term.
TY_INLINE void interleave(int8_t *to, const int8_t *from, int64_t c_step, __m128i flip) {
  const __m128i a = load128(from), b = load128(from + c_step);
  const __m128i c = load128(from + 2 * c_step), d = load128(from + 3 * c_step);
  const __m128i ab0 = _mm_unpacklo_epi8(a, b), ab1 = _mm_unpackhi_epi8(a, b);
  const __m128i cd0 = _mm_unpacklo_epi8(c, d), cd1 = _mm_unpackhi_epi8(c, d);
  store128(to, _mm_xor_si128(_mm_unpacklo_epi16(ab0, cd0), flip));
  store128(to + 16, _mm_xor_si128(_mm_unpackhi_epi16(ab0, cd0), flip));
  store128(to + 32, _mm_xor_si128(_mm_unpacklo_epi16(ab1, cd1), flip));
  store128(to + 48, _mm_xor_si128(_mm_unpackhi_epi16(ab1, cd1), flip));
}

// Packs the whole fours of a panel where one tap's terms or outputs are contiguous; returns how
// many terms that covers.
int64_t pack_fours(int8_t *panel, const int8_t *from, const Q8Form &form, int64_t outputs) {
  const int64_t whole = form.c / 4 * 4;
  const __m128i flip = _mm_set1_epi8(form.is_unsigned ? -128 : 0);
  if (form.taps != 1) return 0;
  if (form.o_step == 1 && outputs == 16) {
    for (int64_t c = 0; c < whole; c += 4)
      interleave(panel + c * 16, from + c * form.c_step, form.c_step, flip);
    return whole;
  }
  if (form.c_step != 1) return 0;
  const int32_t bits = form.is_unsigned ? static_cast<int32_t>(0x80808080u) : 0;
  for (int64_t o = 0; o < outputs; ++o)
    for (int64_t c = 0; c < whole; c += 4) {
      const int32_t four = load32(from + o * form.o_step + c) ^ bits;
      __builtin_memcpy(panel + c * 16 + o * 4, &four, 4);
    }
  return whole;
}

}  // namespace

void q8_run(const ty_ctx *ctx, const Q8Plan &given) {
  Q8Plan p = given;
  const int64_t pixels = p.n * p.oh * p.ow;
  if (pixels <= 0 || p.o <= 0) return;
  // Below a half, any sum times its multiplier is an int32.
  p.narrow =
      q8_narrow(p.store, q8_largest(p.multiplier, p.o) < 0.5f && p.residual.data == nullptr &&
                             p.w_zero == nullptr && p.floats == nullptr);
  // A piece's rows should stay in the first caches while the weights of its outputs pass by.
  const int64_t bytes = p.k4 * 4 * static_cast<int64_t>(sizeof(Operand));
  const int64_t outputs = 16 * MAX_BLOCKS, groups = q8_ceil(p.o, outputs);
  int64_t chunk = 96 * 1024 / (bytes + 1) / WHOLE_ROWS * WHOLE_ROWS;
  chunk = chunk < WHOLE_ROWS ? static_cast<int64_t>(WHOLE_ROWS)
                             : q8_lesser(chunk, 384 / WHOLE_ROWS * WHOLE_ROWS);
  // Two pieces for each thread, at least.
  if (ctx->threads > 1) {
    const int64_t wanted = q8_ceil(2 * ctx->threads, groups);
    chunk = q8_lesser(chunk, q8_up(q8_ceil(pixels, wanted), WHOLE_ROWS / 2));
  }
  const int64_t chunks = q8_ceil(pixels, chunk);
  const int64_t items = groups * chunks;
  const int64_t work = chunk * outputs * p.k4 * 4;
  ty_parallel(ctx, items, 1 + 400000 / (work + 1), [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first = item % chunks * chunk;
      run_pixels(p, first, q8_lesser(first + chunk, pixels), item / chunks * outputs);
    }
  });
}

void q8_pack(const ty_ctx *ctx, int8_t *to, const int8_t *from, const Q8Form &form) {
  const int64_t c4 = q8_ceil(form.c, 4), k4 = form.taps * c4, size = (k4 + 1) * 64;
  const int8_t flip = form.is_unsigned ? -128 : 0;
  ty_parallel(ctx, q8_ceil(form.o, 16), 1 + 16384 / size, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t block = begin; block < end; ++block) {
      int8_t *panel = to + block * size;
      const int64_t o0 = block * 16, outputs = q8_lesser(16, form.o - o0);
      __builtin_memset(panel, 0, static_cast<size_t>(size));
      const int64_t done = pack_fours(panel, from + o0 * form.o_step, form, outputs);
      for (int64_t tap = 0; tap < form.taps; ++tap)
        for (int64_t c = done; c < form.c; ++c) {
          int8_t *at = panel + (tap * c4 + c / 4) * 64 + c % 4;
          const int8_t *source = from + o0 * form.o_step + c * form.c_step + tap;
          for (int64_t o = 0; o < outputs; ++o)
            at[o * 4] = static_cast<int8_t>(source[o * form.o_step] ^ flip);
        }
      sum_panel(panel, k4);
    }
  });
}

void q8_fill_columns(const Q8Columns &to, const Q8Given &g) {
  if (g.bias != nullptr)
    __builtin_memcpy(to.bias, g.bias, static_cast<size_t>(4 * g.o));
  else
    __builtin_memset(to.bias, 0, static_cast<size_t>(4 * g.o));
  if (g.n_multipliers > 1) {
    for (int64_t o = 0; o < g.o; ++o) to.multiplier[o] = static_cast<float>(g.multipliers[o]);
  } else {
    const float one = static_cast<float>(g.multipliers[0]);
    for (int64_t o = 0; o < g.o; ++o) to.multiplier[o] = one;
  }
  if (to.w_zero != nullptr)
    for (int64_t o = 0; o < g.o; ++o)
      to.w_zero[o] = static_cast<int32_t>(g.w_zeros[g.n_w_zeros > 1 ? o : 0]) + g.w_shift;
  for (int64_t o = g.o; o < g.o + 16; ++o) {
    to.bias[o] = 0;
    to.multiplier[o] = 0.0f;
    if (to.w_zero != nullptr) to.w_zero[o] = 0;
  }
}

float q8_largest(const float *multiplier, int64_t o) {
  vf found = vset1(0.0f);
  for (int64_t at = 0; at < o; at += TY_VF) found = vmax_fast(found, vload(multiplier + at));
  alignas(64) float lanes[TY_VF];
  vstore(lanes, found);
  float largest = 0;
  for (int i = 0; i < TY_VF; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}

void q8_fold_zero(int32_t *bias, const int32_t *w_zero, const int8_t *weight, int64_t o, int64_t k4,
                  int64_t terms, int32_t x_zero) {
  if (x_zero == 0) return;
  // Sums behind the last output are zero, and change nothing of what follows.
  for (int64_t at = 0; at < o; at += 16) {
    const int8_t *sums = weight + at / 16 * (k4 + 1) * 64 + k4 * 64;
    for (int i = 0; i < 16; i += TY_VF) {
      const vi sum = vi_load(static_cast<const int32_t *>(static_cast<const void *>(sums + 4 * i)));
      vi_store(bias + at + i, vi_sub(vi_load(bias + at + i), vi_mul(sum, vi_set1(x_zero))));
    }
  }
  if (w_zero == nullptr) return;
  // Sums wrap around as the definition has it, so they are taken without sign.
  const uint32_t factor = static_cast<uint32_t>(x_zero) * static_cast<uint32_t>(terms);
  for (int64_t at = 0; at < o; ++at) {
    const uint32_t more = factor * static_cast<uint32_t>(w_zero[at]);
    bias[at] = static_cast<int32_t>(static_cast<uint32_t>(bias[at]) + more);
  }
}

}  // namespace TY_ISA

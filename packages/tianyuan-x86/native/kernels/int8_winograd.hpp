// The integer transforms of Winograd's F(4 x 4, 3 x 3), free of fractions.
//
// Frequencies are the points 0, 1, -1, 2, -2 and infinity. Weights are transformed by the rows
// [6 0 0], [1 1 1], [1 -1 1], [1 2 4], [1 -2 4] and [0 0 6], so that products of frequencies are
// multiples of the exact ones. The transform back then gives outputs times 24, 12, 6 and 6 in each
// dimension, which sums that wrap around at 2^32 determine but for the power of two in it.
#pragma once

#include "int8_conv.hpp"

namespace TY_ISA {

enum { WINO_OUT = 4, WINO_IN = 6, WINO_FREQUENCIES = 36 };

#if TY_VF == 16
enum { WINO_LANES = 32 };
typedef __m512i w16;
TY_INLINE w16 w16_set1(int16_t x) { return _mm512_set1_epi16(x); }
TY_INLINE w16 w16_add(w16 a, w16 b) { return _mm512_add_epi16(a, b); }
TY_INLINE w16 w16_sub(w16 a, w16 b) { return _mm512_sub_epi16(a, b); }
#define w16_shl(a, n) _mm512_slli_epi16((a), (n))
TY_INLINE void w16_store(int16_t *to, w16 x) { _mm512_storeu_si512(to, x); }
// Which of 32 channels are there.
typedef __mmask32 WinoMask;
TY_INLINE WinoMask wino_mask(int64_t channels) {
  return channels < WINO_LANES ? (WinoMask{1} << channels) - 1 : ~WinoMask{0};
}
template <bool SIGNED, bool ALL>
TY_INLINE w16 w16_load(const uint8_t *from, WinoMask mask) {
  const __m256i bytes = ALL ? _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from))
                            : _mm256_maskz_loadu_epi8(mask, from);
  return SIGNED ? _mm512_cvtepi8_epi16(bytes) : _mm512_cvtepu8_epi16(bytes);
}
// Adds the products of pairs, which may wrap around.
TY_INLINE vi w16_dot(vi sum, vi a, vi b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(sum, a, b);
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
}
#else
enum { WINO_LANES = 16 };
typedef __m256i w16;
TY_INLINE w16 w16_set1(int16_t x) { return _mm256_set1_epi16(x); }
TY_INLINE w16 w16_add(w16 a, w16 b) { return _mm256_add_epi16(a, b); }
TY_INLINE w16 w16_sub(w16 a, w16 b) { return _mm256_sub_epi16(a, b); }
#define w16_shl(a, n) _mm256_slli_epi16((a), (n))
TY_INLINE void w16_store(int16_t *to, w16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), x);
}
// Channels come in whole vectors.
struct WinoMask {};
TY_INLINE WinoMask wino_mask(int64_t) { return {}; }
template <bool SIGNED, bool ALL>
TY_INLINE w16 w16_load(const uint8_t *from, WinoMask) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
  return SIGNED ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
}
TY_INLINE vi w16_dot(vi sum, vi a, vi b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
#endif

// Whether a tile has four rows (or columns) of outputs, or up to two only: short tiles are F(2, 3),
// on the points 0, 1, -1 and infinity, whose weights are the same.
enum WinoLength { WINO_WHOLE, WINO_SHORT };

// Six values in a row into six frequencies. The results fit 16 bits (the largest is 100 times half
// of a byte's range after both dimensions), so what wraps around on the way does not matter.
template <WinoLength LENGTH>
TY_INLINE void wino_forward(const w16 (&d)[6], w16 (&to)[6]) {
  if (LENGTH == WINO_SHORT) {
    const w16 s = w16_sub(d[0], d[2]), p = w16_add(d[1], d[2]), q = w16_sub(d[2], d[1]);
    to[0] = w16_shl(s, 2);
    to[1] = w16_sub(p, w16_shl(p, 2));
    to[2] = w16_sub(q, w16_shl(q, 2));
    to[5] = w16_shl(w16_sub(d[3], d[1]), 1);
    return;
  }
  const w16 s = w16_sub(d[4], d[2]), t = w16_shl(w16_sub(d[3], d[1]), 1);
  const w16 p = w16_sub(d[4], w16_shl(d[2], 2)), q = w16_sub(d[3], w16_shl(d[1], 2));
  to[0] = w16_add(w16_shl(w16_sub(d[0], d[2]), 2), s);
  to[1] = w16_add(p, q);
  to[2] = w16_sub(p, q);
  to[3] = w16_add(s, t);
  to[4] = w16_sub(s, t);
  to[5] = w16_sub(w16_sub(d[5], d[3]), w16_shl(t, 1));
}

// Frequencies and values that a length has.
template <WinoLength LENGTH>
constexpr bool wino_has(int frequency) {
  return LENGTH == WINO_WHOLE || (frequency != 3 && frequency != 4);
}
template <WinoLength LENGTH>
constexpr int wino_values = LENGTH == WINO_WHOLE ? 6 : 4;
template <WinoLength LENGTH>
constexpr int wino_outputs = LENGTH == WINO_WHOLE ? 4 : 2;

// Six rows of pixels, each a start and the distance between pixels, which is 0 in padding.
struct WinoRows {
  const uint8_t *start[6];
  int64_t step[6];
  int64_t width, pixel;
  bool inside;          // whether all rows lie in the image, `pixel` bytes between their pixels
  const uint8_t *line;  // what pixels left and right of the image are
};

// Transforms column x of the rows.
template <bool SIGNED, bool ALL, WinoLength HEIGHT>
TY_INLINE void wino_column(const WinoRows &rows, int64_t x, int64_t c, WinoMask mask,
                           w16 (&to)[6]) {
  const bool inside = x >= 0 && x < rows.width;
  w16 d[6];
#pragma GCC unroll 6
  for (int i = 0; i < wino_values<HEIGHT>; ++i)
    d[i] = w16_load<SIGNED, ALL>((inside ? rows.start[i] + x * rows.step[i] : rows.line) + c, mask);
  wino_forward<HEIGHT>(d, to);
}

// Transforms the columns 2 and on of a tile at column x, all of which lie in the image.
template <bool SIGNED, bool ALL, WinoLength HEIGHT, WinoLength WIDTH>
TY_INLINE void wino_columns(const WinoRows &rows, int64_t x, int64_t c, WinoMask mask,
                            w16 (&to)[4][6]) {
  const int64_t first = (x + 2) * rows.pixel + c;
#pragma GCC unroll 4
  for (int j = 0; j < wino_values<WIDTH> - 2; ++j) {
    w16 d[6];
#pragma GCC unroll 6
    for (int i = 0; i < wino_values<HEIGHT>; ++i)
      d[i] = w16_load<SIGNED, ALL>(rows.start[i] + first + j * rows.pixel, mask);
    wino_forward<HEIGHT>(d, to[j]);
  }
}

// Transforms `count` tiles next to each other from column x on, for up to WINO_LANES channels, or
// for as many (ALL); the two columns that neighbours share once. Only the frequency of the ones
// sees a constant, such as the middle of a byte's range, 36 times.
template <bool SIGNED, bool ALL, WinoLength HEIGHT, WinoLength WIDTH>
static inline void wino_input(const WinoRows &rows, int64_t x, int64_t count, int64_t c,
                              WinoMask mask, int16_t *to, int64_t v_row, int64_t step) {
  w16 shared[2][6];
  wino_column<SIGNED, ALL, HEIGHT>(rows, x, c, mask, shared[0]);
  wino_column<SIGNED, ALL, HEIGHT>(rows, x + 1, c, mask, shared[1]);
  for (int64_t tile = 0; tile < count; ++tile, x += WINO_OUT, to += v_row) {
    w16 fresh[4][6];
    if (rows.inside && x >= -2 && x + wino_values<WIDTH> <= rows.width) {
      wino_columns<SIGNED, ALL, HEIGHT, WIDTH>(rows, x, c, mask, fresh);
    } else {
#pragma GCC unroll 4
      for (int j = 2; j < wino_values<WIDTH>; ++j)
        wino_column<SIGNED, ALL, HEIGHT>(rows, x + j, c, mask, fresh[j - 2]);
    }
    int16_t *row_to = to;
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i, row_to += 6 * step) {
      // Six addresses from one and a few distances, instead of 36 that do not fit the registers.
      asm("" : "+r"(row_to));
      if (!wino_has<HEIGHT>(i)) continue;
      w16 found[6], row[6] = {shared[0][i], shared[1][i], fresh[0][i], fresh[1][i]};
      if (WIDTH == WINO_WHOLE) {
        row[4] = shared[0][i] = fresh[2][i];
        row[5] = shared[1][i] = fresh[3][i];
      }
      wino_forward<WIDTH>(row, found);
      if (i == 1 && !SIGNED) found[1] = w16_sub(found[1], w16_set1(36 * 128));
#pragma GCC unroll 6
      for (int j = 0; j < 6; ++j)
        if (wino_has<WIDTH>(j)) w16_store(row_to + j * step, found[j]);
    }
  }
}

// Products of frequencies into outputs times 24 and 12, and 6 and 6 where there are four.
template <WinoLength LENGTH>
TY_INLINE void wino_back(const vi (&m)[6], vi (&to)[4]) {
  const vi a = vi_add(m[1], m[2]), b = vi_sub(m[1], m[2]);
  if (LENGTH == WINO_SHORT) {
    to[0] = vi_sub(m[0], vi_shl(a, 2));
    to[1] = vi_sub(m[5], vi_shl(b, 1));
    return;
  }
  const vi c = vi_add(m[3], m[4]), d = vi_sub(m[3], m[4]);
  to[0] = vi_add(vi_sub(m[0], vi_shl(a, 2)), c);
  to[1] = vi_sub(d, vi_shl(b, 1));
  to[2] = vi_sub(c, a);
  to[3] = vi_add(vi_sub(m[5], b), vi_shl(d, 1));
}

// The power of two in what wino_back multiplies an output by.
TY_INLINE constexpr int wino_power(int output) { return output < 2 ? 3 - output : 1; }

// Divides by 9 2^shift what is a multiple of it: times the inverse of 9 modulo 2^32.
TY_INLINE vi wino_exact(vi x, int shift) {
  const vi product = vi_mul(x, vi_set1(0x38e38e39));
#if TY_VF == 16
  return _mm512_sra_epi32(product, _mm_cvtsi32_si128(shift));
#else
  return _mm256_sra_epi32(product, _mm_cvtsi32_si128(shift));
#endif
}

}  // namespace TY_ISA

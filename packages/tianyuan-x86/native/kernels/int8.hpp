// Products of 8-bit integers: what convolution and matrix product share from packed operands on.
//
// Weights lie as [block of 16 outputs][K / 4][16 outputs][4 terms], zeros up to a whole number of
// equal steps, and one more row of [16 outputs] int32 that holds their sums. Images lie as
// [n][y][x][channels], their channels padded.
#pragma once

#include "kernel.hpp"
#include "simd.hpp"

namespace TY_ISA {

// Whether products are made in tiles of AMX, or in their emulation.
#if defined(__AMX_INT8__) || defined(TY_EMULATE_TILES)
#define Q8_TILES 1
#else
#define Q8_TILES 0
#endif

#if defined(__AVX512VNNI__)
// Unsigned bytes, signed ones moved up by 128: what vpdpbusd multiplies by signed weights. Tiles
// take both as they are.
typedef uint8_t Operand;
enum { Q8_FLIPS = !Q8_TILES };
#else
// Differences to the zero point: vpmaddwd multiplies them by widened weights without saturating.
typedef int16_t Operand;
enum { Q8_FLIPS = 1 };
#endif

// Channels that a pixel of a channels-last image takes.
TY_INLINE int64_t q8_channels(int64_t c) { return c <= 4 ? 4 : round_up(c, 16); }

// Rows of four terms of a panel, without that of the sums: they are cut into the fewest equal steps
// of at most 16, which is what a tile holds.
TY_INLINE int64_t q8_panel_rows(int64_t k4) {
  const int64_t steps = ceil_div(k4, 16);
  return steps == 0 ? 0 : round_up(k4, steps);
}
TY_INLINE int64_t q8_panel_bytes(int64_t k4) { return (q8_panel_rows(k4) + 1) * 64; }

TY_INLINE int32_t q8_load32(const void *from) {
  int32_t value;
  __builtin_memcpy(&value, from, 4);
  return value;
}
TY_INLINE __m128i q8_load128(const int8_t *from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
}

// How a float32 result becomes a stored integer; lower and upper are relative to the zero point.
struct Q8Store {
  float lower, upper;
  int32_t zero_point;
};

struct Q8Residual {
  const uint8_t *data;  // NULL where there is none
  bool is_signed;
  int32_t zero_point;
  float multiplier;
};

template <typename Attrs>
TY_INLINE Q8Store q8_store_of(const Attrs &a) {
  return {static_cast<float>(a.lower - a.zero_point), static_cast<float>(a.upper - a.zero_point),
          static_cast<int32_t>(a.zero_point)};
}

// Inputs behind the operands: a bias, then a residual, where there are any.
template <typename Attrs>
TY_INLINE const int32_t *q8_bias_of(const Attrs &a, const ty_tensor *inputs) {
  return a.has_bias ? static_cast<const int32_t *>(inputs[2].data) : nullptr;
}
template <typename Attrs>
TY_INLINE Q8Residual q8_residual_of(const Attrs &a, const ty_tensor *inputs) {
  if (!a.has_residual) return {};
  const ty_tensor &residual = inputs[a.has_bias ? 3 : 2];
  return {static_cast<const uint8_t *>(residual.data), residual.dtype == TY_INT8,
          static_cast<int32_t>(a.residual_zero_point), static_cast<float>(a.residual_multiplier)};
}

// Clamping before rounding equals clamping after it, since the bounds are integers; NaN gives the
// lower one.
TY_INLINE vi q8_rounded(vf t, const Q8Store &store) {
  return vf_to_vi(vmin_fast(vmax_fast(t, vset1(store.lower)), vset1(store.upper)));
}
TY_INLINE vi q8_finish(vf t, const Q8Store &store) {
  return vi_add(q8_rounded(t, store), vi_set1(store.zero_point));
}

// 16 results at once: a vector in AVX-512, two in AVX2.
enum { Q8_PARTS = 16 / TY_VF };
struct Q8Lanes {
  vi part[Q8_PARTS];
};

// Widens 16 bytes, of which `count` are there.
TY_INLINE Q8Lanes q8_load16(const uint8_t *from, int64_t count, bool is_signed) {
  __m128i bytes;
  if (count >= 16) {
    bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
  } else {
    alignas(16) uint8_t some[16] = {};
    __builtin_memcpy(some, from, static_cast<size_t>(count));
    bytes = _mm_load_si128(reinterpret_cast<const __m128i *>(some));
  }
  Q8Lanes found;
#if TY_VF == 16
  found.part[0] = is_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
#else
  const __m128i high = _mm_srli_si128(bytes, 8);
  found.part[0] = is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
  found.part[1] = is_signed ? _mm256_cvtepi8_epi32(high) : _mm256_cvtepu8_epi32(high);
#endif
  return found;
}

// Stores the low byte of each lane, which is the result in either dtype.
TY_INLINE void q8_store16(uint8_t *to, const Q8Lanes &x, int64_t count) {
#if TY_VF == 16
  const __m128i bytes = _mm512_cvtepi32_epi8(x.part[0]);
#else
  const __m256i low = _mm256_set1_epi32(0xff);
  const __m256i words =
      _mm256_packus_epi32(_mm256_and_si256(x.part[0], low), _mm256_and_si256(x.part[1], low));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  const __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
#endif
  if (count >= 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), bytes);
  } else {
    alignas(16) uint8_t some[16];
    _mm_store_si128(reinterpret_cast<__m128i *>(some), bytes);
    __builtin_memcpy(to, some, static_cast<size_t>(count));
  }
}

// Terms that lie next to each other in the rows of the first operand: `k4` groups of 4 from
// `offset`, in elements.
struct Q8Run {
  int64_t offset, k4;
};

// How results are stored by way of saturating 16-bit integers, where those suffice; the bounds are
// those of bytes whose sign bit `flip` turns.
struct Q8Narrow {
  bool fits, plain;  // plain: the bounds are those of the dtype
  int16_t zero_point;
  uint8_t lower, upper, flip;
};
TY_INLINE Q8Narrow q8_narrow(const Q8Store &s, bool fits) {
  const int32_t lower = static_cast<int32_t>(s.lower) + s.zero_point;
  const int32_t up = lower < 0 ? 128 : 0;  // signed bytes become unsigned ones
  const int32_t upper = static_cast<int32_t>(s.upper) + s.zero_point;
  return {fits,
          lower + up == 0 && upper + up == 255,
          static_cast<int16_t>(s.zero_point + up),
          static_cast<uint8_t>(lower + up),
          static_cast<uint8_t>(upper + up),
          static_cast<uint8_t>(up)};
}

// Four vectors of rounded results as one of bytes. In each part of 128 bits, four results of one
// vector lie after those of the vector before it.
TY_INLINE vi q8_narrowed(const vi (&whole)[4], const Q8Narrow &n) {
#if TY_VF == 16
  const vi zero = _mm512_set1_epi16(n.zero_point);
  const vi low = _mm512_adds_epi16(_mm512_packs_epi32(whole[0], whole[1]), zero);
  const vi high = _mm512_adds_epi16(_mm512_packs_epi32(whole[2], whole[3]), zero);
  const vi packed = _mm512_packus_epi16(low, high);
  if (n.plain) return vi_xor(packed, _mm512_set1_epi8(static_cast<char>(n.flip)));
  const vi bytes = _mm512_max_epu8(packed, _mm512_set1_epi8(static_cast<char>(n.lower)));
  return vi_xor(_mm512_min_epu8(bytes, _mm512_set1_epi8(static_cast<char>(n.upper))),
                _mm512_set1_epi8(static_cast<char>(n.flip)));
#else
  const vi zero = _mm256_set1_epi16(n.zero_point);
  const vi low = _mm256_adds_epi16(_mm256_packs_epi32(whole[0], whole[1]), zero);
  const vi high = _mm256_adds_epi16(_mm256_packs_epi32(whole[2], whole[3]), zero);
  const vi packed = _mm256_packus_epi16(low, high);
  if (n.plain) return vi_xor(packed, _mm256_set1_epi8(static_cast<char>(n.flip)));
  const vi bytes = _mm256_max_epu8(packed, _mm256_set1_epi8(static_cast<char>(n.lower)));
  return vi_xor(_mm256_min_epu8(bytes, _mm256_set1_epi8(static_cast<char>(n.upper))),
                _mm256_set1_epi8(static_cast<char>(n.flip)));
#endif
}

// Where windows reach beyond the image and what lies there adds nothing to their sums: operands
// that are zero. Each run is then a row of the kernel.
struct Q8Border {
  bool known;
  bool left, right;    // whether the first and the last pixel of a row reach beyond it by a tap
  int64_t tap;         // groups of four terms in a tap
  int64_t top, h;      // rows of padding above the image, and of the image
  int64_t step, tall;  // between the windows of two pixels, and between two rows of one
};

struct Q8Gather;

// A product: every pixel is a row of the first operand, every output a column of the second.
struct Q8Plan {
  const Operand *x;
  bool is_signed;          // x as tiles read it
  const Q8Gather *gather;  // where rows are gathered from, for tiles only; else NULL: they lie in x
  bool by_rows;            // whether tiles take the rows of an image one by one
  int64_t image, row, pixel;  // distances in elements: of images, of output rows, of pixels
  int64_t n, oh, ow;
  const Q8Run *runs;
  int64_t n_runs, k4;  // k4: of all runs
  Q8Border border;
  const int8_t *weight;
  int64_t panel;            // bytes between blocks of outputs; q8_run fills it
  int64_t o, o_room;        // outputs, and how many of a pixel may be written
  const int32_t *bias;      // o values and 16 more: bias and what zero points add
  const float *multiplier;  // o values and 16 more
  const int32_t *w_zero;    // o values and 16 more, or NULL where all are zero
  const int32_t *row_sums;  // by pixel, where w_zero is given: sums of the first operand
  uint8_t *y;
  int64_t y_pixel;
  Q8Residual residual;  // in the form of y
  Q8Store store;
  Q8Narrow narrow;  // q8_run fills it
  float *floats;    // or NULL: where results go as floats in place of y, without residual and store
  const float *add;  // or NULL: o values and 16 more, added to the floats
};

void q8_run(const ty_ctx *ctx, const Q8Plan &given);

// Multiplier, residual, rounding and clamping of sums, which lie as [rows][blocks][16 outputs],
// into the pixels from `first` and the outputs from `o` on.
void q8_finish_rows(const Q8Plan &p, const int32_t *sums, int rows, int blocks, int64_t first,
                    int64_t o);

// Bytes of a packed weight.
TY_INLINE int64_t q8_packed_bytes(int64_t o, int64_t k4) {
  return ceil_div(o, 16) * q8_panel_bytes(k4);
}

// A second operand in any form: term (tap, c) of output o lies at o * o_step + c * c_step + tap.
struct Q8Form {
  int64_t o, c, taps, o_step, c_step;
  bool is_unsigned;  // moved down by 128, to be signed
};

void q8_pack(const ty_ctx *ctx, int8_t *to, const int8_t *from, const Q8Form &form);

// Fills the padded copies of bias, multipliers and zero points of the second operand.
struct Q8Columns {
  int32_t *bias, *w_zero;
  float *multiplier;
};
struct Q8Given {
  const int32_t *bias;        // or NULL
  const double *multipliers;  // one or o
  const int64_t *w_zeros;     // one or o
  int64_t n_multipliers, n_w_zeros, o;
  int32_t w_shift;  // what was added to the second operand and thus to its zero points
};
TY_INLINE int64_t q8_columns_bytes(int64_t o) { return round_up(4 * (o + 32), 64); }
void q8_fill_columns(const Q8Columns &to, const Q8Given &given);

// The largest of o multipliers and of those that fill the last vector.
float q8_largest(const float *multiplier, int64_t o);

// Takes the zero point of the first operand into the bias; `x_zero` is that of the Operand form, 0
// where differences are multiplied. `terms` counts what is summed.
void q8_fold_zero(int32_t *bias, const int32_t *w_zero, const int8_t *weight, int64_t o, int64_t k4,
                  int64_t terms, int32_t x_zero);

// Zero points of the two forms of operands.
TY_INLINE int32_t q8_zero(uint8_t, int64_t zero_point, bool is_signed) {
  return static_cast<int32_t>(zero_point) + (Q8_FLIPS && is_signed ? 128 : 0);
}
TY_INLINE int32_t q8_zero(int16_t, int64_t, bool) { return 0; }

// Turns stored bytes into operands.
TY_INLINE void q8_convert(uint8_t *to, const uint8_t *from, int64_t count, int64_t,
                          bool is_signed) {
  if (!Q8_FLIPS || !is_signed) {
    __builtin_memcpy(to, from, static_cast<size_t>(count));
    return;
  }
  const __m256i flip = _mm256_set1_epi8(-128);
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + i), _mm256_xor_si256(bytes, flip));
  }
  for (; i < count; ++i) to[i] = from[i] ^ 0x80;
}
TY_INLINE void q8_convert(int16_t *to, const uint8_t *from, int64_t count, int64_t zero_point,
                          bool is_signed) {
  const int16_t zero = static_cast<int16_t>(zero_point);
  const __m256i zeros = _mm256_set1_epi16(zero);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i));
    const __m256i wide = is_signed ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + i), _mm256_sub_epi16(wide, zeros));
  }
  for (; i < count; ++i)
    to[i] = static_cast<int16_t>((is_signed ? static_cast<int8_t>(from[i]) : from[i]) - zero);
}

// Writes `count` operands that are all the same.
TY_INLINE void q8_fill(uint8_t *to, uint8_t value, int64_t count) {
  __builtin_memset(to, value, static_cast<size_t>(count));
}
TY_INLINE void q8_fill(int16_t *to, int16_t value, int64_t count) {
  const __m256i values = _mm256_set1_epi16(value);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + i), values);
  for (; i < count; ++i) to[i] = value;
}

// Elements between the rows of a copied first operand: whole steps for tiles.
TY_INLINE int64_t q8_row_room(int64_t k4) { return 4 * (Q8_TILES ? q8_panel_rows(k4) : k4); }

// Hands out parts of a workspace, each on a line of its own.
struct Q8Scratch {
  char *next;
  void *take(int64_t bytes) {
    void *found = next;
    next += round_up(bytes, 64);
    return found;
  }
};

}  // namespace TY_ISA

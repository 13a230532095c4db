// What products of 8-bit operands share: packing the second operand, the tables by output, and how
// sums become results.
#include "int8.hpp"

namespace TY_ISA {
namespace {

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
    vi_store(reinterpret_cast<int32_t *>(panel + 64 * q8_panel_rows(k4)) + i * TY_VF, sums[i]);
}

TY_INLINE void store128(int8_t *to, __m128i x) {
  _mm_storeu_si128(reinterpret_cast<__m128i *>(to), x);
}

// Four terms of 16 outputs that lie next to each other, term by term.
TY_INLINE void interleave(int8_t *to, const int8_t *from, int64_t c_step, __m128i flip) {
  const __m128i a = q8_load128(from), b = q8_load128(from + c_step);
  const __m128i c = q8_load128(from + 2 * c_step), d = q8_load128(from + 3 * c_step);
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
      const int32_t four = q8_load32(from + o * form.o_step + c) ^ bits;
      __builtin_memcpy(panel + c * 16 + o * 4, &four, 4);
    }
  return whole;
}

}  // namespace

// Multiplier and bias of a tile's sums that stay floats.
static void finish_floats(const Q8Plan &p, const int32_t *sums, int rows, int blocks, int64_t first,
                          int64_t o) {
  for (int i = 0; i < blocks * Q8_PARTS; ++i) {
    const int64_t lane = o + i * TY_VF, count = p.o_room - lane;
    if (count <= 0) return;
    const vf factor = vload(p.multiplier + lane);
    const vf add = p.add != nullptr ? vload(p.add + lane) : vset1(0.0f);
    const vtail tail = vtail_of(lesser(count, TY_VF));
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

void q8_finish_rows(const Q8Plan &p, const int32_t *sums, int rows, int blocks, int64_t first,
                    int64_t o) {
  if (p.floats != nullptr) {
    finish_floats(p, sums, rows, blocks, first, o);
    return;
  }
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

void q8_pack(const ty_ctx *ctx, int8_t *to, const int8_t *from, const Q8Form &form) {
  const int64_t c4 = ceil_div(form.c, 4), k4 = form.taps * c4, size = q8_panel_bytes(k4);
  const int8_t flip = form.is_unsigned ? -128 : 0;
  ty_parallel(ctx, ceil_div(form.o, 16), 1 + 16384 / size,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t block = begin; block < end; ++block) {
                  int8_t *panel = to + block * size;
                  const int64_t o0 = block * 16, outputs = lesser(16, form.o - o0);
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
    const int8_t *sums = weight + at / 16 * q8_panel_bytes(k4) + q8_panel_rows(k4) * 64;
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

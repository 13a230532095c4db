// Float32 rows of every elementwise op, shared by the single ops and by fused programs.
#pragma once

#include <stdint.h>

#include "simd.hpp"

namespace TY_ISA {

// A row works on n elements; an operand with step 0 is one repeated element. out may be an operand.
typedef void (*UnaryRow)(float *out, const float *x, int64_t n);
typedef void (*BinaryRow)(float *out, const float *x, const float *y, int64_t n, int x_step,
                          int y_step);

// Rows by opcode (ty_elementwise), or null where the op is of another arity. Truth values are 0
// and 1.
UnaryRow unary_row(int64_t opcode);
BinaryRow binary_row(int64_t opcode);

// The gradient of gelu, which has no opcode.
void gelu_backward_row(float *out, const float *g, const float *x, int64_t n, int g_step,
                       int x_step);

// out = mask != 0 ? x : y.
void where_row(float *out, const float *mask, const float *x, const float *y, int64_t n, int m_step,
               int x_step, int y_step);

// One byte 0 or 1 per lane.
TY_INLINE void store_truth(uint8_t *out, vm truth) {
#if TY_VF == 16
  _mm_storeu_si128((__m128i *)out, _mm_maskz_set1_epi8(truth, 1));
#else
  __m256i bits = _mm256_and_si256(_mm256_castps_si256(truth), _mm256_set1_epi32(1));
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  _mm_storel_epi64((__m128i *)out, _mm_packus_epi16(words, words));
#endif
}

TY_INLINE vf load_truth(const uint8_t *p) {
#if TY_VF == 16
  return vi_to_vf(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
#else
  return vi_to_vf(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#endif
}

}  // namespace TY_ISA

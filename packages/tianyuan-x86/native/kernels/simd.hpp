// One vector vocabulary for every tier: kernels are written once over it and compiled per tier with
// -DTY_ISA=<namespace> and the tier's -m flags. Everything is static inline, so that no symbol of a
// tier can be merged with another tier's.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#ifndef TY_ISA
#error "compile with -DTY_ISA=avx2 or -DTY_ISA=avx512"
#endif

#define TY_INLINE static inline __attribute__((always_inline))

namespace TY_ISA {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define TY_VF 16

// vf: float lanes; vi: int32 lanes; vm: one truth per lane; vtail: the first n lanes.
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;
typedef __mmask16 vtail;

TY_INLINE vf vzero() { return _mm512_setzero_ps(); }
TY_INLINE vf vset1(float x) { return _mm512_set1_ps(x); }
TY_INLINE vf vload(const float *p) { return _mm512_loadu_ps(p); }
TY_INLINE void vstore(float *p, vf x) { _mm512_storeu_ps(p, x); }
TY_INLINE void vstream(float *p, vf x) { _mm512_stream_ps(p, x); }  // p is 64-byte aligned
TY_INLINE vtail vtail_of(int64_t n) { return n >= 16 ? (vtail)0xffff : (vtail)((1u << n) - 1u); }
TY_INLINE vf vload_tail(const float *p, vtail t) { return _mm512_maskz_loadu_ps(t, p); }
TY_INLINE void vstore_tail(float *p, vf x, vtail t) { _mm512_mask_storeu_ps(p, t, x); }
TY_INLINE vm vtail_mask(vtail t) { return t; }

TY_INLINE vf vadd(vf a, vf b) { return _mm512_add_ps(a, b); }
TY_INLINE vf vsub(vf a, vf b) { return _mm512_sub_ps(a, b); }
TY_INLINE vf vmul(vf a, vf b) { return _mm512_mul_ps(a, b); }
TY_INLINE vf vdiv(vf a, vf b) { return _mm512_div_ps(a, b); }
TY_INLINE vf vsqrt(vf a) { return _mm512_sqrt_ps(a); }
TY_INLINE vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }    // a*b + c
TY_INLINE vf vfnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a*b
TY_INLINE vf vfms(vf a, vf b, vf c) { return _mm512_fmsub_ps(a, b, c); }    // a*b - c
TY_INLINE vf vmax_fast(vf a, vf b) { return _mm512_max_ps(a, b); }          // b where either is NaN
TY_INLINE vf vmin_fast(vf a, vf b) { return _mm512_min_ps(a, b); }

TY_INLINE vf vand(vf a, vf b) { return _mm512_and_ps(a, b); }
TY_INLINE vf vandnot(vf a, vf b) { return _mm512_andnot_ps(a, b); }  // ~a & b
TY_INLINE vf vor(vf a, vf b) { return _mm512_or_ps(a, b); }
TY_INLINE vf vxor(vf a, vf b) { return _mm512_xor_ps(a, b); }

TY_INLINE vf vround(vf a) { return _mm512_roundscale_ps(a, 0x08); }  // half to even
TY_INLINE vf vfloor(vf a) { return _mm512_roundscale_ps(a, 0x09); }
TY_INLINE vf vceil(vf a) { return _mm512_roundscale_ps(a, 0x0a); }
TY_INLINE vf vtrunc(vf a) { return _mm512_roundscale_ps(a, 0x0b); }

// Ordered comparisons: false where either is NaN, except vneq.
TY_INLINE vm veq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
TY_INLINE vm vneq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
TY_INLINE vm vlt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
TY_INLINE vm vle(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
TY_INLINE vm vgt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
TY_INLINE vm vge(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
TY_INLINE vm visnan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
TY_INLINE vm vm_and(vm a, vm b) { return (vm)(a & b); }
TY_INLINE vm vm_or(vm a, vm b) { return (vm)(a | b); }
TY_INLINE vm vm_xor(vm a, vm b) { return (vm)(a ^ b); }
TY_INLINE vm vm_not(vm a) { return (vm)~a; }
TY_INLINE uint32_t vm_bits(vm a) { return a; }  // bit i is lane i
TY_INLINE vf vselect(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
TY_INLINE vi vi_select(vm m, vi yes, vi no) { return _mm512_mask_blend_epi32(m, no, yes); }

TY_INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
TY_INLINE vi vi_load(const int32_t *p) { return _mm512_loadu_si512((const void *)p); }
TY_INLINE void vi_store(int32_t *p, vi x) { _mm512_storeu_si512((void *)p, x); }
TY_INLINE vi vi_load_tail(const int32_t *p, vtail t) { return _mm512_maskz_loadu_epi32(t, p); }
TY_INLINE void vi_store_tail(int32_t *p, vi x, vtail t) { _mm512_mask_storeu_epi32(p, t, x); }
TY_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
TY_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
TY_INLINE vi vi_mul(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
TY_INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
TY_INLINE vi vi_min(vi a, vi b) { return _mm512_min_epi32(a, b); }
TY_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
TY_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
TY_INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
#define vi_shl(a, n) _mm512_slli_epi32((a), (n))
#define vi_shr(a, n) _mm512_srli_epi32((a), (n))  // logical
#define vi_sar(a, n) _mm512_srai_epi32((a), (n))  // arithmetic
TY_INLINE vm vi_eq(vi a, vi b) { return _mm512_cmpeq_epi32_mask(a, b); }
TY_INLINE vm vi_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask(a, b); }
TY_INLINE vi vf_to_vi(vf a) { return _mm512_cvtps_epi32(a); }         // half to even
TY_INLINE vi vf_to_vi_trunc(vf a) { return _mm512_cvttps_epi32(a); }  // as a C cast
TY_INLINE vf vi_to_vf(vi a) { return _mm512_cvtepi32_ps(a); }
TY_INLINE vf vi_as_vf(vi a) { return _mm512_castsi512_ps(a); }
TY_INLINE vi vf_as_vi(vf a) { return _mm512_castps_si512(a); }
TY_INLINE vf vgather(const float *p, vi index) { return _mm512_i32gather_ps(index, p, 4); }

TY_INLINE __m256 vf_low(vf a) { return _mm512_castps512_ps256(a); }
TY_INLINE __m256 vf_high(vf a) { return _mm512_extractf32x8_ps(a, 1); }
TY_INLINE float vhsum(vf a) {
  __m256 h = _mm256_add_ps(vf_low(a), vf_high(a));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
TY_INLINE int32_t vi_hmax(vi a) { return _mm512_reduce_max_epi32(a); }

// IEEE half and bfloat16 to and from float lanes; narrowing rounds half to even.
TY_INLINE vf vload_f16(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
TY_INLINE void vstore_f16(uint16_t *p, vf x) {
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
TY_INLINE vf vload_bf16(const uint16_t *p) {
  vi wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return vi_as_vf(vi_shl(wide, 16));
}
TY_INLINE void vi_store_u16(uint16_t *p, vi x) {  // low half of every lane
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(x));
}

#else
#define TY_VF 8

typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;  // all ones or all zeros per lane
typedef __m256i vtail;

TY_INLINE vf vzero() { return _mm256_setzero_ps(); }
TY_INLINE vf vset1(float x) { return _mm256_set1_ps(x); }
TY_INLINE vf vload(const float *p) { return _mm256_loadu_ps(p); }
TY_INLINE void vstore(float *p, vf x) { _mm256_storeu_ps(p, x); }
TY_INLINE void vstream(float *p, vf x) { _mm256_stream_ps(p, x); }
TY_INLINE vtail vtail_of(int64_t n) {
  __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n > 8 ? 8 : (int)n), lanes);
}
TY_INLINE vf vload_tail(const float *p, vtail t) { return _mm256_maskload_ps(p, t); }
TY_INLINE void vstore_tail(float *p, vf x, vtail t) { _mm256_maskstore_ps(p, t, x); }
TY_INLINE vm vtail_mask(vtail t) { return _mm256_castsi256_ps(t); }

TY_INLINE vf vadd(vf a, vf b) { return _mm256_add_ps(a, b); }
TY_INLINE vf vsub(vf a, vf b) { return _mm256_sub_ps(a, b); }
TY_INLINE vf vmul(vf a, vf b) { return _mm256_mul_ps(a, b); }
TY_INLINE vf vdiv(vf a, vf b) { return _mm256_div_ps(a, b); }
TY_INLINE vf vsqrt(vf a) { return _mm256_sqrt_ps(a); }
TY_INLINE vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
TY_INLINE vf vfnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
TY_INLINE vf vfms(vf a, vf b, vf c) { return _mm256_fmsub_ps(a, b, c); }
TY_INLINE vf vmax_fast(vf a, vf b) { return _mm256_max_ps(a, b); }
TY_INLINE vf vmin_fast(vf a, vf b) { return _mm256_min_ps(a, b); }

TY_INLINE vf vand(vf a, vf b) { return _mm256_and_ps(a, b); }
TY_INLINE vf vandnot(vf a, vf b) { return _mm256_andnot_ps(a, b); }
TY_INLINE vf vor(vf a, vf b) { return _mm256_or_ps(a, b); }
TY_INLINE vf vxor(vf a, vf b) { return _mm256_xor_ps(a, b); }

TY_INLINE vf vround(vf a) { return _mm256_round_ps(a, 0x08); }
TY_INLINE vf vfloor(vf a) { return _mm256_round_ps(a, 0x09); }
TY_INLINE vf vceil(vf a) { return _mm256_round_ps(a, 0x0a); }
TY_INLINE vf vtrunc(vf a) { return _mm256_round_ps(a, 0x0b); }

TY_INLINE vm veq(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
TY_INLINE vm vneq(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ); }
TY_INLINE vm vlt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
TY_INLINE vm vle(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
TY_INLINE vm vgt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
TY_INLINE vm vge(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
TY_INLINE vm visnan(vf a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
TY_INLINE vm vm_and(vm a, vm b) { return _mm256_and_ps(a, b); }
TY_INLINE vm vm_or(vm a, vm b) { return _mm256_or_ps(a, b); }
TY_INLINE vm vm_xor(vm a, vm b) { return _mm256_xor_ps(a, b); }
TY_INLINE vm vm_not(vm a) { return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1))); }
TY_INLINE uint32_t vm_bits(vm a) { return (uint32_t)_mm256_movemask_ps(a); }
TY_INLINE vf vselect(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }
TY_INLINE vi vi_select(vm m, vi yes, vi no) {
  return _mm256_blendv_epi8(no, yes, _mm256_castps_si256(m));
}

TY_INLINE vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
TY_INLINE vi vi_load(const int32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
TY_INLINE void vi_store(int32_t *p, vi x) { _mm256_storeu_si256((__m256i *)p, x); }
TY_INLINE vi vi_load_tail(const int32_t *p, vtail t) { return _mm256_maskload_epi32(p, t); }
TY_INLINE void vi_store_tail(int32_t *p, vi x, vtail t) { _mm256_maskstore_epi32(p, t, x); }
TY_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
TY_INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
TY_INLINE vi vi_mul(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
TY_INLINE vi vi_max(vi a, vi b) { return _mm256_max_epi32(a, b); }
TY_INLINE vi vi_min(vi a, vi b) { return _mm256_min_epi32(a, b); }
TY_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
TY_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
TY_INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
#define vi_shl(a, n) _mm256_slli_epi32((a), (n))
#define vi_shr(a, n) _mm256_srli_epi32((a), (n))
#define vi_sar(a, n) _mm256_srai_epi32((a), (n))
TY_INLINE vm vi_eq(vi a, vi b) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)); }
TY_INLINE vm vi_gt(vi a, vi b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b)); }
TY_INLINE vi vf_to_vi(vf a) { return _mm256_cvtps_epi32(a); }
TY_INLINE vi vf_to_vi_trunc(vf a) { return _mm256_cvttps_epi32(a); }
TY_INLINE vf vi_to_vf(vi a) { return _mm256_cvtepi32_ps(a); }
TY_INLINE vf vi_as_vf(vi a) { return _mm256_castsi256_ps(a); }
TY_INLINE vi vf_as_vi(vf a) { return _mm256_castps_si256(a); }
TY_INLINE vf vgather(const float *p, vi index) { return _mm256_i32gather_ps(p, index, 4); }

TY_INLINE float vhsum(vf a) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
TY_INLINE int32_t vi_hmax(vi a) {
  __m128i q = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}

TY_INLINE vf vload_f16(const uint16_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
TY_INLINE void vstore_f16(uint16_t *p, vf x) {
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
TY_INLINE vf vload_bf16(const uint16_t *p) {
  vi wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
  return vi_as_vf(vi_shl(wide, 16));
}
TY_INLINE void vi_store_u16(uint16_t *p, vi x) {
  vi low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
  __m128i narrow = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  _mm_storeu_si128((__m128i *)p, narrow);
}
#endif

enum { VF = TY_VF };

TY_INLINE vf vneg(vf a) { return vxor(a, vset1(-0.0f)); }
TY_INLINE vf vabs(vf a) { return vandnot(vset1(-0.0f), a); }

// numpy's maximum and minimum: NaN where either is NaN.
TY_INLINE vf vmax(vf a, vf b) { return vselect(visnan(a), a, vmax_fast(a, b)); }
TY_INLINE vf vmin(vf a, vf b) { return vselect(visnan(a), a, vmin_fast(a, b)); }

// NaN lanes round to quiet NaN, since adding the rounding bias could carry them into infinity.
TY_INLINE void vstore_bf16(uint16_t *p, vf x) {
  vi bits = vf_as_vi(x);
  vi odd = vi_and(vi_shr(bits, 16), vi_set1(1));
  vi rounded = vi_shr(vi_add(vi_add(bits, vi_set1(0x7fff)), odd), 16);
  vi quiet = vi_or(vi_shr(bits, 16), vi_set1(0x40));
  vi_store_u16(p, vi_select(visnan(x), quiet, rounded));
}

// Reductions over the lanes; vhmax and vhmin give NaN where any lane is NaN.
TY_INLINE float vhmax(vf a) {
  float lanes[VF], best;
  vstore(lanes, a);
  best = lanes[0];
  for (int i = 1; i < VF; ++i) best = (lanes[i] > best || lanes[i] != lanes[i]) ? lanes[i] : best;
  return vm_bits(visnan(a)) ? __builtin_nanf("") : best;
}
TY_INLINE float vhmin(vf a) {
  float lanes[VF], best;
  vstore(lanes, a);
  best = lanes[0];
  for (int i = 1; i < VF; ++i) best = (lanes[i] < best || lanes[i] != lanes[i]) ? lanes[i] : best;
  return vm_bits(visnan(a)) ? __builtin_nanf("") : best;
}

// 2^n for integer lanes n in [-126, 127].
TY_INLINE vf vpow2(vi n) { return vi_as_vf(vi_shl(vi_add(n, vi_set1(127)), 23)); }

}  // namespace TY_ISA

// What the blocked images of a tier hold: float32, or bfloat16 in the tier of that name. A kernel
// for both computes in float32 and leaves it to this file how values are loaded and stored.
#pragma once

#include "kernel.hpp"
#include "simd.hpp"

namespace TY_ISA {

#if defined(__AVX512BF16__)
#define TY_ELEMENT "bf16"
typedef uint16_t element;
TY_INLINE vf vload_element(const element *p) { return vload_bf16(p); }
TY_INLINE void vstore_element(element *p, vf x) {  // rounds half to even
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), (__m256i)_mm512_cvtneps_pbh(x));
}
#else
#define TY_ELEMENT "f32"
typedef float element;
TY_INLINE vf vload_element(const element *p) { return vload(p); }
TY_INLINE void vstore_element(element *p, vf x) { vstore(p, x); }
#endif

// How many blocks hold `channels`.
TY_INLINE int64_t blocks_of(int64_t channels) { return ceil_div(channels, VF); }

}  // namespace TY_ISA

// u = G w G^T: how Winograd's methods transform a kernel, in double for weights that stay, and
// rounded once, or in float for those that change from run to run.
#pragma once

#include "simd.hpp"

namespace TY_ISA {
namespace {

// G along an axis: a row of factors of the taps for each weight.
template <int WEIGHTS, int TAPS>
struct KernelMatrix {
  double row[WEIGHTS][TAPS];
};

struct Single {
  typedef vf vector;
  enum { LANES = VF };
  TY_INLINE vf load(const float *p) { return vload(p); }
  TY_INLINE void store(float *p, vf x) { vstore(p, x); }
  TY_INLINE vf times(double a, vf b) { return vmul(vset1(static_cast<float>(a)), b); }
  TY_INLINE vf fma(double a, vf b, vf c) { return vfma(vset1(static_cast<float>(a)), b, c); }
};

#if TY_VF == 16
struct Double {
  typedef __m512d vector;
  enum { LANES = 8 };
  TY_INLINE vector load(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
  TY_INLINE void store(float *p, vector x) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(x)); }
  TY_INLINE vector times(double a, vector b) { return _mm512_mul_pd(_mm512_set1_pd(a), b); }
  TY_INLINE vector fma(double a, vector b, vector c) {
    return _mm512_fmadd_pd(_mm512_set1_pd(a), b, c);
  }
};
#else
struct Double {
  typedef __m256d vector;
  enum { LANES = 4 };
  TY_INLINE vector load(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
  TY_INLINE void store(float *p, vector x) { _mm_storeu_ps(p, _mm256_cvtpd_ps(x)); }
  TY_INLINE vector times(double a, vector b) { return _mm256_mul_pd(_mm256_set1_pd(a), b); }
  TY_INLINE vector fma(double a, vector b, vector c) {
    return _mm256_fmadd_pd(_mm256_set1_pd(a), b, c);
  }
};
#endif

// A row of G times the taps. Factors are known once loops are unrolled; those of 0 are left out.
template <class In, int TAPS>
TY_INLINE typename In::vector weight_of(const double (&row)[TAPS],
                                        const typename In::vector *taps) {
  typename In::vector sum = {};
  bool begun = false;
#pragma GCC unroll 7
  for (int t = 0; t < TAPS; ++t) {
    if (row[t] == 0.0) continue;
    if (!begun)
      sum = row[t] == 1.0 ? taps[t] : In::times(row[t], taps[t]);
    else
      sum = In::fma(row[t], taps[t], sum);
    begun = true;
  }
  return sum;
}

// u = G g along an axis.
template <class In, int WEIGHTS, int TAPS>
TY_INLINE void transform_kernel(const KernelMatrix<WEIGHTS, TAPS> &g,
                                const typename In::vector *taps, typename In::vector *u) {
#pragma GCC unroll 13
  for (int i = 0; i < WEIGHTS; ++i) u[i] = weight_of<In>(g.row[i], taps);
}

}  // namespace
}  // namespace TY_ISA

// What turns float32 sums of pairs into results: residual, activation, rounding.
#pragma once

#include "bf16.hpp"

namespace TY_ISA {
namespace {

// Adds a residual to a vector of sums, finishes it and stores it as vector `v` of the results.
template <int KIND, typename Finish>
TY_INLINE void finish(const PairTile *t, vf sum, int64_t at, int v, const Finish &function) {
  const vm valid = t->valid[v];
  if (KIND == PAIR_MATRIX) {
    if (t->residual)
      sum = vadd(sum, vload_tail(static_cast<const float *>(t->residual) + at, valid));
    vstore_tail(static_cast<float *>(t->y) + at, function(sum), valid);
  } else {
    element *const to = static_cast<element *>(t->y) + at;
    if (t->residual) sum = vadd(sum, vload_element(static_cast<const element *>(t->residual) + at));
    const vm written = KIND == PAIR_LANES ? t->written[v] : vm(-1);
    const __m256i rounded = (__m256i)_mm512_maskz_cvtneps_pbh(valid, function(sum));
    _mm256_mask_storeu_epi16(to, written, rounded);
  }
}

// Keeps bounds.
template <int KIND>
TY_INLINE void store(const PairTile *t, vf sum, int64_t at, int v) {
  finish<KIND>(t, sum, at, v, [&](vf x) __attribute__((always_inline)) {
    return vmin_fast(vset1(t->epilogue.upper), vmax_fast(vset1(t->epilogue.lower), x));
  });
}

// Coefficients of Phi(-a) over a in [0, 4), a quarter each: within a quadratic's 1.3e-5 at most.
struct GeluTable {
  vf c[3];
};

TY_INLINE GeluTable gelu_table() {
  alignas(64) static const float c[3][VF] = {
      {0.50003159f, 0.502802551f, 0.51073283f, 0.519525707f, 0.519193053f, 0.49919945f,
       0.454203576f, 0.386904359f, 0.306721419f, 0.225656986f, 0.153922558f, 0.0973489955f,
       0.0571199395f, 0.0311188251f, 0.0157551784f, 0.00741944695f},
      {-0.401233256f, -0.42328161f, -0.455415964f, -0.479469031f, -0.479388148f, -0.447821915f,
       -0.388040781f, -0.311151683f, -0.230866611f, -0.15865086f, -0.101102963f, -0.0598268211f,
       -0.0329137444f, -0.0168536883f, -0.00804044399f, -0.00357692759f},
      {0.0246200394f, 0.0693992749f, 0.102115989f, 0.11859329f, 0.118845746f, 0.106378585f,
       0.086511381f, 0.064540796f, 0.0444375016f, 0.0283502098f, 0.0168061443f, 0.00927612931f,
       0.00477433577f, 0.00229411083f, 0.00103007723f, 0.000432511704f}};
  return {{vload(c[0]), vload(c[1]), vload(c[2])}};
}

// x Phi(x) = max(x, 0) - |x| Phi(-|x|), to 3e-5, and to 1.3e-4 beyond 4, where the second term
// ends.
TY_INLINE vf near_gelu(vf x, const GeluTable &t) {
  const vf a = vmin_fast(vset1(3.99999976f), vabs(x));
  // The last bit of what is added counts quarters.
  const vf quarter =
      _mm512_add_round_ps(a, vset1(2097152.0f), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  const __m512i at = (__m512i)quarter;
  const vf slope = vfma(_mm512_permutexvar_ps(at, t.c[2]), a, _mm512_permutexvar_ps(at, t.c[1]));
  return vfnma(a, vfma(slope, a, _mm512_permutexvar_ps(at, t.c[0])), vmax_fast(vzero(), x));
}

// The same with an activation that is no bound.
template <int KIND>
TY_INLINE void store_smooth(const PairTile *t, vf sum, int64_t at, int v, const GeluTable &table) {
  finish<KIND>(t, sum, at, v, [&](vf x) __attribute__((always_inline)) {
    const Activation activation = t->epilogue.activation;
    return activation == ACT_GELU ? near_gelu(x, table) : activate_smooth(x, activation);
  });
}

}  // namespace
}  // namespace TY_ISA

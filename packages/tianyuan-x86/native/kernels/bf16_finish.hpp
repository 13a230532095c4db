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

// x Phi(x) by an odd polynomial for Phi - 1/2 that meets its limits at 4: 1.4e-4 absolute.
TY_INLINE vf near_gelu(vf x) {
  static const float c[] = {0.398186339f,    -0.0650637994f,   0.00903960729f,  -0.000882762589f,
                            5.73930445e-05f, -2.30953789e-06f, 5.05090024e-08f, -4.37700963e-10f};
  // Below -4, where Phi is almost 0, x must not grow.
  const vf least = vmax_fast(vset1(-4.0f), x), t = vmin_fast(vset1(4.0f), least);
  const vf phi = vfma(t, vpoly(vmul(t, t), c, 7), vset1(0.5f));
  return vmul(least, phi);
}

TY_INLINE vf finished(vf x, Activation activation) {
  return activation == ACT_GELU ? near_gelu(x) : activate_smooth(x, activation);
}

// The same with an activation that is no bound.
template <int KIND>
TY_INLINE void store_smooth(const PairTile *t, vf sum, int64_t at, int v) {
  finish<KIND>(t, sum, at, v, [&](vf x) __attribute__((always_inline)) {
    return finished(x, t->epilogue.activation);
  });
}

}  // namespace
}  // namespace TY_ISA

// What turns float32 sums of pairs into results: residual, activation, rounding.
#pragma once

#include "bf16.hpp"

namespace TY_ISA {
namespace {

// Adds a residual, keeps bounds and stores one vector of results.
template <int KIND>
TY_INLINE void store(const PairTile *t, vf sum, int64_t at, vm valid) {
  if (KIND == PAIR_MATRIX) {
    if (t->residual)
      sum = vadd(sum, vload_tail(static_cast<const float *>(t->residual) + at, valid));
    sum = vmin_fast(vset1(t->epilogue.upper), vmax_fast(vset1(t->epilogue.lower), sum));
    vstore_tail(static_cast<float *>(t->y) + at, sum, valid);
  } else {
    if (t->residual) sum = vadd(sum, vload_bf16(static_cast<const uint16_t *>(t->residual) + at));
    sum = vmin_fast(vset1(t->epilogue.upper), vmax_fast(vset1(t->epilogue.lower), sum));
    vstore_element_of(static_cast<uint16_t *>(t->y) + at, sum, valid);
  }
}

// x Phi(x) by an odd polynomial for Phi - 1/2 that meets its limits at 4: 1.4e-4 absolute.
TY_INLINE vf near_gelu(vf x) {
  static const float c[] = {0.398186339f,    -0.0650637994f,   0.00903960729f,  -0.000882762589f,
                            5.73930445e-05f, -2.30953789e-06f, 5.05090024e-08f, -4.37700963e-10f};
  const vf t = vmin_fast(vset1(4.0f), vmax_fast(vset1(-4.0f), x));
  const vf phi = vfma(t, vpoly(vmul(t, t), c, 7), vset1(0.5f));
  return vmul(x, phi);
}

TY_INLINE vf finished(vf x, Activation activation) {
  return activation == ACT_GELU ? near_gelu(x) : activate_smooth(x, activation);
}

// The same with an activation that is no bound.
template <int KIND>
TY_INLINE void store_smooth(const PairTile *t, vf sum, int64_t at, vm valid) {
  const Activation activation = t->epilogue.activation;
  if (KIND == PAIR_MATRIX) {
    if (t->residual)
      sum = vadd(sum, vload_tail(static_cast<const float *>(t->residual) + at, valid));
    vstore_tail(static_cast<float *>(t->y) + at, finished(sum, activation), valid);
  } else {
    if (t->residual) sum = vadd(sum, vload_bf16(static_cast<const uint16_t *>(t->residual) + at));
    vstore_element_of(static_cast<uint16_t *>(t->y) + at, finished(sum, activation), valid);
  }
}

}  // namespace
}  // namespace TY_ISA

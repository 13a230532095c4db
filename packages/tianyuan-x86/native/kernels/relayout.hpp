// Packing of weights, shared by relayout and by kernels that take plain weights.
#pragma once

#include "kernel.hpp"
#include "simd.hpp"

namespace TY_ISA {

// A weight as o x c matrices, one per kernel element; distances of o and c in floats, kernel
// elements are contiguous. Swapped distances give the transposed matrices.
struct WeightForm {
  int64_t o, c, kernel, o_step, c_step;
};

// Writes [block of o][block of c][kernel][VF c][VF o], zeros behind the last channels.
void pack_weight(const ty_ctx *ctx, float *to, const float *from, const WeightForm &form);

}  // namespace TY_ISA

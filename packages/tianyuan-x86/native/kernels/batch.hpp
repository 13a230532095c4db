// Where the items of a batch of matrices lie whose leading axes broadcast.
#pragma once

#include "kernel.hpp"

namespace TY_ISA {

// Distances of broadcast batch axes are zero.
static inline void batch_strides(const ty_tensor &x, const ty_tensor &out, int64_t *strides) {
  const int dims = out.ndim - 2, own = x.ndim - 2;
  int64_t stride = x.shape[x.ndim - 2] * x.shape[x.ndim - 1];
  for (int axis = dims - 1; axis >= 0; --axis) {
    const int mine = axis - (dims - own);
    const int64_t extent = mine >= 0 ? x.shape[mine] : 1;
    strides[axis] = extent == 1 ? 0 : stride;
    stride *= extent;
  }
}

// Where a batch item of an operand lies.
static inline int64_t batch_offset(int dims, const int64_t *extents, const int64_t *strides,
                                   int64_t item) {
  int64_t offset = 0;
  for (int axis = dims - 1; axis >= 0; --axis) {
    offset += item % extents[axis] * strides[axis];
    item /= extents[axis];
  }
  return offset;
}

}  // namespace TY_ISA

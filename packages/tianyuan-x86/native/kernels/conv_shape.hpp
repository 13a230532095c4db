// Reads a convolution's extents from its attrs struct and the shapes of its tensors.
#pragma once

#include "conv.hpp"

namespace TY_ISA {
namespace {

// `x` is (N, C, H, W), `w` (O, C / groups, kh, kw), `y` (N, O, OH, OW), whichever of them the op
// takes or gives.
template <typename Attrs>
inline ConvShape conv_shape(const Attrs &a, const int64_t *x, const int64_t *w, const int64_t *y) {
  const int64_t *stride = TY_INTS(&a, a.stride), *padding = TY_INTS(&a, a.padding);
  const int64_t *dilation = TY_INTS(&a, a.dilation);
  return {x[0],      x[1],        x[2],        x[3],       y[1],       y[2],    y[3], w[2],
          w[3],      stride[0],   stride[1],   dilation[0], dilation[1], padding[0], padding[1],
          a.groups};
}

}  // namespace
}  // namespace TY_ISA

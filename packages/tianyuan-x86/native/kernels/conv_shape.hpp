// Reads a convolution from its attrs and tensors: extents, taps, and what follows its sums.
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
  return {x[0], x[1],      x[2],      x[3],        y[1],        y[2],       y[3],       w[2],
          w[3], stride[0], stride[1], dilation[0], dilation[1], padding[0], padding[1], a.groups};
}

// Reads what follows a fused convolution's sums into `call`: bias, residual in the form of the
// result, and epilogue.
template <typename Call>
inline int read_epilogue(const ty_ctx *ctx, const ty_conv2d_fused_attrs &a, const ty_tensor *inputs,
                         Call *call) {
  int next = 2;
  if (a.has_bias) call->bias = static_cast<const float *>(inputs[next++].data);
  if (a.has_residual) call->residual = static_cast<decltype(call->residual)>(inputs[next].data);
  const char *name = TY_STRING(&a, a.activation);
  call->epilogue = {activation_of(name), static_cast<float>(a.lower), static_cast<float>(a.upper)};
  if (call->epilogue.activation == ACT_UNKNOWN)
    return ty_fail(ctx, "conv2d_fused: unknown activation, got '%s'", name);
  return 0;
}

// The taps of a convolution in the order of its kernel.
inline void forward_taps(const ConvShape &s, ConvTap *taps) {
  for (int64_t i = 0; i < s.kh; ++i)
    for (int64_t j = 0; j < s.kw; ++j)
      taps[i * s.kw + j] = {i * s.dh - s.top, j * s.dw - s.left, i * s.kw + j};
}

// The taps through which the gradient reaches input pixels (py + sh y, px + sw x), as positions of
// the output's gradient; returns how many there are.
inline int64_t phase_taps(const ConvShape &s, int64_t py, int64_t px, ConvTap *taps) {
  int64_t count = 0;
  for (int64_t i = 0; i < s.kh; ++i) {
    const int64_t y = py + s.top - i * s.dh;
    if (y % s.sh != 0) continue;
    for (int64_t j = 0; j < s.kw; ++j) {
      const int64_t x = px + s.left - j * s.dw;
      if (x % s.sw == 0) taps[count++] = {y / s.sh, x / s.sw, i * s.kw + j};
    }
  }
  return count;
}

// Floats that a table of taps takes in a workspace.
inline int64_t taps_floats(const ConvShape &s) {
  return ceil_div(s.kh * s.kw * static_cast<int64_t>(sizeof(ConvTap)), 64) * 16;
}

}  // namespace
}  // namespace TY_ISA

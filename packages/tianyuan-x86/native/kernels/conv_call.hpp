// Reads a call of conv2d or conv2d_fused, in either element, as plans of its groups.
#pragma once

#include "conv_shape.hpp"

namespace TY_ISA {
namespace {

// What conv2d and conv2d_fused share once their attrs are read; images are counted in words.
struct Call {
  ConvShape shape;
  const float *x, *weight, *bias, *residual;
  float *y;
  Epilogue epilogue;
};

template <typename Attrs>
inline Call call_of(const Attrs &a, const ty_tensor *inputs, const ty_tensor &y) {
  Call call = {};
  call.x = static_cast<const float *>(inputs[0].data);
  call.weight = static_cast<const float *>(inputs[1].data);
  call.y = static_cast<float *>(y.data);
  call.shape = conv_shape(a, inputs[0].shape, inputs[1].shape, y.shape);
  return call;
}

inline int read_plain(const ty_ctx *, const ty_tensor *inputs, const ty_tensor *outputs,
                      const ty_attrs *attrs, Call *call) {
  *call = call_of(*reinterpret_cast<const ty_conv2d_attrs *>(attrs), inputs, outputs[0]);
  return 0;
}

inline int read_fused(const ty_ctx *ctx, const ty_tensor *inputs, const ty_tensor *outputs,
                      const ty_attrs *attrs, Call *call) {
  const auto *a = reinterpret_cast<const ty_conv2d_fused_attrs *>(attrs);
  *call = call_of(*a, inputs, outputs[0]);
  return read_epilogue(ctx, *a, inputs, call);
}

typedef int (*Read)(const ty_ctx *, const ty_tensor *, const ty_tensor *, const ty_attrs *, Call *);

// A call as a plan; in blocked values each group fills whole blocks.
inline ConvPlan plan_of(const Call &call, bool x_blocked, bool y_blocked, const ConvTap *taps) {
  const ConvShape &s = call.shape;
  ConvPlan p = {};
  p.groups = s.groups;
  p.n = s.n;
  p.c = s.c / s.groups;
  p.h = s.h;
  p.w = s.w;
  p.x_blocked = x_blocked;
  p.x_image = (x_blocked ? ceil_div(s.c, VF) * BLOCK_WORDS : s.c) * s.h * s.w;
  p.x_group = p.c / TERMS * s.h * s.w;
  p.x = call.x;
  p.n_weights = p.n_taps = s.kh * s.kw;
  p.taps = taps;
  p.sh = s.sh;
  p.sw = s.sw;
  p.o = s.o / s.groups;
  p.oh = s.oh;
  p.ow = s.ow;
  p.y_blocked = y_blocked;
  p.y_pixel = y_blocked ? BLOCK_WORDS : 1;
  p.y_row = s.ow * p.y_pixel;
  p.y_channel = s.oh * p.y_row;
  p.y_image = (y_blocked ? ceil_div(s.o, VF) : s.o) * p.y_channel;
  p.y_group = p.o / TERMS * s.oh * s.ow;
  p.y = call.y;
  p.residual = call.residual;
  p.bias = call.bias;
  p.epilogue = call.epilogue;
  return p;
}

#define CONV_KERNEL(name, run, ...)                                                               \
  int name(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs, \
           void *workspace) {                                                                     \
    return run(__VA_ARGS__, ctx, inputs, outputs, attrs, workspace);                              \
  }

}  // namespace
}  // namespace TY_ISA

// conv2d and conv2d_fused in float32: blocked and plain forms of the direct convolution.
#include "conv.hpp"
#include "conv_shape.hpp"
#include "relayout.hpp"

namespace TY_ISA {
namespace {

// What conv2d and conv2d_fused share once their attrs are read.
struct Call {
  ConvShape shape;
  const float *x, *weight, *bias, *residual;
  float *y;
  Epilogue epilogue;
};

Call call_of(const ty_tensor *inputs, const ty_tensor &y) {
  Call call = {};
  call.x = static_cast<const float *>(inputs[0].data);
  call.weight = static_cast<const float *>(inputs[1].data);
  call.y = static_cast<float *>(y.data);
  return call;
}

int read_plain(const ty_ctx *, const ty_tensor *inputs, const ty_tensor *outputs,
               const ty_attrs *attrs, Call *call) {
  const ty_conv2d_attrs *a = reinterpret_cast<const ty_conv2d_attrs *>(attrs);
  *call = call_of(inputs, outputs[0]);
  call->shape = conv_shape(*a, inputs[0].shape, inputs[1].shape, outputs[0].shape);
  return 0;
}

int read_fused(const ty_ctx *ctx, const ty_tensor *inputs, const ty_tensor *outputs,
               const ty_attrs *attrs, Call *call) {
  const ty_conv2d_fused_attrs *a = reinterpret_cast<const ty_conv2d_fused_attrs *>(attrs);
  *call = call_of(inputs, outputs[0]);
  call->shape = conv_shape(*a, inputs[0].shape, inputs[1].shape, outputs[0].shape);
  return read_epilogue(ctx, *a, inputs, call);
}

typedef int (*Read)(const ty_ctx *, const ty_tensor *, const ty_tensor *, const ty_attrs *, Call *);

// Group `group` of a call as a plan; in blocked values each group fills whole blocks.
ConvPlan plan_of(const Call &call, bool x_blocked, bool y_blocked, int64_t group,
                 const ConvTap *taps) {
  const ConvShape &s = call.shape;
  ConvPlan p = {};
  p.n = s.n;
  p.c = s.c / s.groups;
  p.h = s.h;
  p.w = s.w;
  p.x_blocked = x_blocked;
  p.x_image = (x_blocked ? ceil_div(s.c, VF) * VF : s.c) * s.h * s.w;
  p.x = call.x + group * p.c * s.h * s.w;
  p.n_weights = p.n_taps = s.kh * s.kw;
  p.taps = taps;
  p.sh = s.sh;
  p.sw = s.sw;
  p.o = s.o / s.groups;
  p.oh = s.oh;
  p.ow = s.ow;
  p.y_blocked = y_blocked;
  p.y_pixel = y_blocked ? VF : 1;
  p.y_row = s.ow * p.y_pixel;
  p.y_channel = s.oh * p.y_row;
  p.y_image = (y_blocked ? ceil_div(s.o, VF) : s.o) * p.y_channel;
  const int64_t first = group * p.o, offset = first * s.oh * s.ow;
  p.y = call.y + offset;
  p.residual = call.residual ? call.residual + offset : nullptr;
  p.bias = call.bias ? call.bias + first : nullptr;
  p.epilogue = call.epilogue;
  return p;
}

int run_blocked(Read read, bool x_blocked, const ty_ctx *ctx, const ty_tensor *inputs,
                ty_tensor *outputs, const ty_attrs *attrs, void *workspace) {
  Call call;
  if (read(ctx, inputs, outputs, attrs, &call)) return 1;
  const ConvShape &s = call.shape;
  ConvTap *taps = static_cast<ConvTap *>(workspace);
  forward_taps(s, taps);
  for (int64_t group = 0; group < s.groups; ++group) {
    ConvPlan p = plan_of(call, x_blocked, true, group, taps);
    p.weight = call.weight + group * ceil_div(p.o, VF) * ceil_div(p.c, VF) * VF * VF * p.n_taps;
    conv_run(ctx, p, static_cast<float *>(workspace) + taps_floats(s));
  }
  return 0;
}

// Any convolution on plain values: the weight of each group is packed first.
int run_plain(Read read, const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
              const ty_attrs *attrs, void *workspace) {
  Call call;
  if (read(ctx, inputs, outputs, attrs, &call)) return 1;
  const ConvShape &s = call.shape;
  if (s.n == 0 || s.o == 0 || s.oh <= 0 || s.ow <= 0) return 0;
  ConvTap *taps = static_cast<ConvTap *>(workspace);
  forward_taps(s, taps);
  float *packed = static_cast<float *>(workspace) + taps_floats(s);
  const int64_t c = s.c / s.groups, o = s.o / s.groups, kernel = s.kh * s.kw;
  float *rest = packed + ceil_div(o, VF) * ceil_div(c, VF) * VF * VF * kernel;
  for (int64_t group = 0; group < s.groups; ++group) {
    pack_weight(ctx, packed, call.weight + group * o * c * kernel,
                {o, c, kernel, c * kernel, kernel});
    ConvPlan p = plan_of(call, false, false, group, taps);
    p.weight = packed;
    conv_run(ctx, p, rest);
  }
  return 0;
}

#define CONV_KERNEL(name, run, ...)                                                               \
  int name(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs, \
           void *workspace) {                                                                     \
    return run(__VA_ARGS__, ctx, inputs, outputs, attrs, workspace);                              \
  }
CONV_KERNEL(conv2d_direct, run_blocked, read_plain, true)
CONV_KERNEL(conv2d_first, run_blocked, read_plain, false)
CONV_KERNEL(conv2d_plain, run_plain, read_plain)
CONV_KERNEL(conv2d_fused_direct, run_blocked, read_fused, true)
CONV_KERNEL(conv2d_fused_first, run_blocked, read_fused, false)
CONV_KERNEL(conv2d_fused_plain, run_plain, read_fused)

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(conv, TY_KERNEL(conv2d_direct, "conv2d_f32", "direct"),
                  TY_KERNEL(conv2d_first, "conv2d_f32", "first"),
                  TY_KERNEL(conv2d_plain, "conv2d_f32", "plain"),
                  TY_KERNEL(conv2d_fused_direct, "conv2d_fused_f32", "direct"),
                  TY_KERNEL(conv2d_fused_direct, "conv2d_fused_f32", "direct_unbiased"),
                  TY_KERNEL(conv2d_fused_first, "conv2d_fused_f32", "first"),
                  TY_KERNEL(conv2d_fused_first, "conv2d_fused_f32", "first_unbiased"),
                  TY_KERNEL(conv2d_fused_plain, "conv2d_fused_f32", "plain"))

// conv2d and conv2d_fused in bfloat16 on blocked images, and on plain ones of few channels.
#include "bf16_conv.hpp"

#include "conv_shape.hpp"

namespace TY_ISA {
namespace {

// What conv2d and conv2d_fused share once their attrs are read.
struct Call {
  ConvShape shape;
  const float *x, *weight, *bias, *residual;
  float *y;
  Epilogue epilogue;
};

template <typename Attrs>
Call call_of(const Attrs &a, const ty_tensor *inputs, const ty_tensor &y) {
  Call call = {};
  call.x = static_cast<const float *>(inputs[0].data);
  call.weight = static_cast<const float *>(inputs[1].data);
  call.y = static_cast<float *>(y.data);
  call.shape = conv_shape(a, inputs[0].shape, inputs[1].shape, y.shape);
  return call;
}

int read_plain(const ty_ctx *, const ty_tensor *inputs, const ty_tensor *outputs,
               const ty_attrs *attrs, Call *call) {
  *call = call_of(*reinterpret_cast<const ty_conv2d_attrs *>(attrs), inputs, outputs[0]);
  return 0;
}

int read_fused(const ty_ctx *ctx, const ty_tensor *inputs, const ty_tensor *outputs,
               const ty_attrs *attrs, Call *call) {
  const auto *a = reinterpret_cast<const ty_conv2d_fused_attrs *>(attrs);
  *call = call_of(*a, inputs, outputs[0]);
  int next = 2;
  if (a->has_bias) call->bias = static_cast<const float *>(inputs[next++].data);
  if (a->has_residual) call->residual = static_cast<const float *>(inputs[next].data);
  const char *name = TY_STRING(a, a->activation);
  call->epilogue = {activation_of(name), static_cast<float>(a->lower),
                    static_cast<float>(a->upper)};
  if (call->epilogue.activation == ACT_UNKNOWN)
    return ty_fail(ctx, "conv2d_fused: unknown activation, got '%s'", name);
  return 0;
}

typedef int (*Read)(const ty_ctx *, const ty_tensor *, const ty_tensor *, const ty_attrs *, Call *);

// Group `group` of a call as a plan; each group fills whole blocks.
ConvPlan plan_of(const Call &call, int64_t group) {
  const ConvShape &s = call.shape;
  ConvPlan p = {};
  p.n = s.n;
  p.c = s.c / s.groups;
  p.h = s.h;
  p.w = s.w;
  p.x_blocked = p.y_blocked = true;
  p.x_image = ceil_div(s.c, VF) * BLOCK_WORDS * s.h * s.w;
  p.x = call.x + group * p.c / 2 * s.h * s.w;
  p.n_weights = p.n_taps = s.kh * s.kw;
  p.sh = s.sh;
  p.sw = s.sw;
  p.o = s.o / s.groups;
  p.oh = s.oh;
  p.ow = s.ow;
  p.y_pixel = BLOCK_WORDS;
  p.y_row = s.ow * p.y_pixel;
  p.y_channel = s.oh * p.y_row;
  p.y_image = ceil_div(s.o, VF) * p.y_channel;
  const int64_t first = group * p.o, offset = first / 2 * s.oh * s.ow;
  p.y = call.y + offset;
  p.residual = call.residual ? call.residual + offset : nullptr;
  p.bias = call.bias ? call.bias + first : nullptr;
  p.epilogue = call.epilogue;
  return p;
}

int run_direct(Read read, const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
               const ty_attrs *attrs, void *workspace) {
  Call call;
  if (read(ctx, inputs, outputs, attrs, &call)) return 1;
  const ConvShape &s = call.shape;
  ConvTap *taps = static_cast<ConvTap *>(workspace);
  forward_taps(s, taps);
  for (int64_t group = 0; group < s.groups; ++group) {
    ConvPlan p = plan_of(call, group);
    p.taps = taps;
    p.weight =
        call.weight + group * ceil_div(p.o, VF) * ceil_div(p.c, VF) * BLOCK_WORDS * VF * p.n_taps;
    pair_conv_run(ctx, p, static_cast<float *>(workspace) + taps_floats(s));
  }
  return 0;
}

int run_first(Read read, const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
              const ty_attrs *attrs, void *workspace) {
  Call call;
  if (read(ctx, inputs, outputs, attrs, &call)) return 1;
  const ConvShape &s = call.shape;
  PairFirst f = {plan_of(call, 0), call.x, s.kh, s.kw, s.top, s.left};
  f.plan.weight = call.weight;
  pair_first_run(ctx, f, static_cast<char *>(workspace));
  return 0;
}

#define CONV_KERNEL(name, run, read)                                                              \
  int name(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs, \
           void *workspace) {                                                                     \
    return run(read, ctx, inputs, outputs, attrs, workspace);                                     \
  }
CONV_KERNEL(conv2d_direct, run_direct, read_plain)
CONV_KERNEL(conv2d_first, run_first, read_plain)
CONV_KERNEL(conv2d_fused_direct, run_direct, read_fused)
CONV_KERNEL(conv2d_fused_first, run_first, read_fused)

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(bf16_conv, TY_KERNEL(conv2d_direct, "conv2d_bf16", "direct"),
                  TY_KERNEL(conv2d_first, "conv2d_bf16", "first"),
                  TY_KERNEL(conv2d_fused_direct, "conv2d_fused_bf16", "direct"),
                  TY_KERNEL(conv2d_fused_direct, "conv2d_fused_bf16", "direct_unbiased"),
                  TY_KERNEL(conv2d_fused_first, "conv2d_fused_bf16", "first"),
                  TY_KERNEL(conv2d_fused_first, "conv2d_fused_bf16", "first_unbiased"))

// conv2d and conv2d_fused in float32: blocked and plain forms of the direct convolution.
#include "conv_call.hpp"
#include "relayout.hpp"

namespace TY_ISA {
namespace {

int run_blocked(Read read, bool x_blocked, const ty_ctx *ctx, const ty_tensor *inputs,
                ty_tensor *outputs, const ty_attrs *attrs, void *workspace) {
  Call call;
  if (read(ctx, inputs, outputs, attrs, &call)) return 1;
  const ConvShape &s = call.shape;
  ConvTap *taps = static_cast<ConvTap *>(workspace);
  forward_taps(s, taps);
  ConvPlan p = plan_of(call, x_blocked, true, taps);
  p.weight = call.weight;
  p.weight_group = ceil_div(p.o, VF) * ceil_div(p.c, VF) * VF * VF * p.n_taps;
  conv_run(ctx, p, static_cast<float *>(workspace) + taps_floats(s));
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
  ConvPlan plan = plan_of(call, false, false, taps);
  plan.weight = packed;
  for (int64_t group = 0; group < s.groups; ++group) {
    pack_weight(ctx, packed, call.weight + group * o * c * kernel,
                {o, c, kernel, c * kernel, kernel});
    conv_run(ctx, group_of(plan, group), rest);
  }
  return 0;
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

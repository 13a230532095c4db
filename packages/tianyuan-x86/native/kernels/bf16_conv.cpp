// conv2d and conv2d_fused in bfloat16 on blocked images.
#include "bf16_conv.hpp"
#include "conv_call.hpp"

namespace TY_ISA {
namespace {

int run_direct(Read read, const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
               const ty_attrs *attrs, void *workspace) {
  Call call;
  if (read(ctx, inputs, outputs, attrs, &call)) return 1;
  const ConvShape &s = call.shape;
  ConvTap *taps = static_cast<ConvTap *>(workspace);
  forward_taps(s, taps);
  ConvPlan p = plan_of(call, true, true, taps);
  p.weight = call.weight;
  p.weight_group = ceil_div(p.o, VF) * pair_weight_words(p);
  pair_conv_run(ctx, p, static_cast<float *>(workspace) + taps_floats(s));
  return 0;
}

CONV_KERNEL(conv2d_direct, run_direct, read_plain)
CONV_KERNEL(conv2d_fused_direct, run_direct, read_fused)

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(bf16_conv, TY_KERNEL(conv2d_direct, "conv2d_bf16", "direct"),
                  TY_KERNEL(conv2d_fused_direct, "conv2d_fused_bf16", "direct"),
                  TY_KERNEL(conv2d_fused_direct, "conv2d_fused_bf16", "direct_unbiased"))

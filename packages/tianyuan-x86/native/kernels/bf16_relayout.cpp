// relayout between images in bfloat16, plain float32 and float32 blocks; padding lanes become zero.
#include "bf16.hpp"

namespace TY_ISA {
namespace {

// Runs body(plane's first value, plane's block, channels that are there) over blocks of channels.
template <typename Body>
void for_blocks(const ty_ctx *ctx, const ty_tensor &x, const Body &body) {
  const int64_t channels = x.shape[1], pixels = x.shape[2] * x.shape[3];
  const int64_t blocks = (channels + VF - 1) / VF;
  ty_parallel(ctx, x.shape[0] * blocks, 1 + 4096 / (pixels * VF + 1),
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t at = begin; at < end; ++at) {
                  const int64_t c0 = at % blocks * VF, rest = channels - c0;
                  body((at / blocks * channels + c0) * pixels, at * pixels * VF,
                       rest < VF ? rest : int64_t{VF});
                }
              });
}

int pack_plain(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
               void *) {
  const int64_t pixels = inputs[0].shape[2] * inputs[0].shape[3];
  const float *x = static_cast<const float *>(inputs[0].data);
  uint16_t *y = static_cast<uint16_t *>(outputs[0].data);
  for_blocks(ctx, inputs[0], [&](int64_t plain, int64_t blocked, int64_t valid) {
    for (int64_t i = 0; i < pixels; i += VF) {
      const int64_t some = pixels - i < VF ? pixels - i : int64_t{VF};
      const vtail tail = vtail_of(some);
      vf block[VF];
#pragma GCC unroll 16
      for (int r = 0; r < VF; ++r)
        block[r] = r < valid ? vload_tail(x + plain + r * pixels + i, tail) : vzero();
      vtranspose(block);
      for (int64_t r = 0; r < some; ++r) vstore_pairs(y + blocked + (i + r) * VF, block[r]);
    }
  });
  return 0;
}

int unpack_plain(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                 void *) {
  const int64_t pixels = outputs[0].shape[2] * outputs[0].shape[3];
  const uint16_t *x = static_cast<const uint16_t *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  for_blocks(ctx, outputs[0], [&](int64_t plain, int64_t blocked, int64_t valid) {
    for (int64_t i = 0; i < pixels; i += VF) {
      const int64_t some = pixels - i < VF ? pixels - i : int64_t{VF};
      const vtail tail = vtail_of(some);
      vf block[VF];
#pragma GCC unroll 16
      for (int r = 0; r < VF; ++r)
        block[r] = r < some ? vload_bf16(x + blocked + (i + r) * VF) : vzero();
      vtranspose(block);
      for (int64_t r = 0; r < valid; ++r) vstore_tail(y + plain + r * pixels + i, block[r], tail);
    }
  });
  return 0;
}

int narrow_blocks(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                  void *) {
  const int64_t values = inputs[0].shape[2] * inputs[0].shape[3] * VF;
  const float *x = static_cast<const float *>(inputs[0].data);
  uint16_t *y = static_cast<uint16_t *>(outputs[0].data);
  for_blocks(ctx, inputs[0], [&](int64_t, int64_t blocked, int64_t) {
    for (int64_t i = blocked; i < blocked + values; i += VF) vstore_pairs(y + i, vload(x + i));
  });
  return 0;
}

int widen_blocks(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                 void *) {
  const int64_t values = inputs[0].shape[2] * inputs[0].shape[3] * VF;
  const uint16_t *x = static_cast<const uint16_t *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  for_blocks(ctx, inputs[0], [&](int64_t, int64_t blocked, int64_t) {
    for (int64_t i = blocked; i < blocked + values; i += VF) vstore(y + i, vload_bf16(x + i));
  });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(bf16_relayout, TY_KERNEL(pack_plain, "relayout_bf16", "pack_nchw"),
                  TY_KERNEL(unpack_plain, "relayout_bf16", "unpack_nchw"),
                  TY_KERNEL(narrow_blocks, "relayout_bf16", "narrow"),
                  TY_KERNEL(widen_blocks, "relayout_bf16", "widen"))

// relayout between plain float32 images and blocked ones in either element; padding lanes become
// zero.
#include "relayout.hpp"

#include "tile.hpp"

namespace TY_ISA {

namespace {

// Runs body(first pixel of a block's first plane, first pixel of the block, planes that are there).
template <typename Body>
void for_blocks(const ty_ctx *ctx, int64_t images, int64_t channels, int64_t pixels,
                const Body &body) {
  const int64_t blocks = blocks_of(channels);
  ty_parallel(
      ctx, images * blocks, 1 + 4096 / (pixels * VF + 1), [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t at = begin; at < end; ++at) {
          const int64_t c0 = at % blocks * VF;
          body((at / blocks * channels + c0) * pixels, at * pixels * VF, lesser(VF, channels - c0));
        }
      });
}

}  // namespace

void pack_channels(const ty_ctx *ctx, element *to, const float *from, int64_t images,
                   int64_t channels, int64_t pixels) {
  for_blocks(ctx, images, channels, pixels, [&](int64_t plane, int64_t blocked, int64_t valid) {
    for (int64_t i = 0; i < pixels; i += VF) {
      const int64_t some = lesser(VF, pixels - i);
      vf block[VF];
      vload_columns(block, from + plane + i, pixels, valid, some);
      for (int64_t r = 0; r < some; ++r) vstore_element(to + blocked + (i + r) * VF, block[r]);
    }
  });
}

void unpack_channels(const ty_ctx *ctx, float *to, const element *from, int64_t images,
                     int64_t channels, int64_t pixels) {
  for_blocks(ctx, images, channels, pixels, [&](int64_t plane, int64_t blocked, int64_t valid) {
    for (int64_t i = 0; i < pixels; i += VF) {
      const int64_t some = lesser(VF, pixels - i);
      const vtail tail = vtail_of(some);
      vf block[VF];
#pragma GCC unroll 16
      for (int r = 0; r < VF; ++r)
        block[r] = r < some ? vload_element(from + blocked + (i + r) * VF) : vzero();
      vtranspose(block);
      for (int64_t r = 0; r < valid; ++r) vstore_tail(to + plane + r * pixels + i, block[r], tail);
    }
  });
}

namespace {

int pack_nchw(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
              void *) {
  const int64_t *s = inputs[0].shape;
  pack_channels(ctx, static_cast<element *>(outputs[0].data),
                static_cast<const float *>(inputs[0].data), s[0], s[1], s[2] * s[3]);
  return 0;
}

int unpack_nchw(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                void *) {
  const int64_t *s = outputs[0].shape;
  unpack_channels(ctx, static_cast<float *>(outputs[0].data),
                  static_cast<const element *>(inputs[0].data), s[0], s[1], s[2] * s[3]);
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(relayout, TY_KERNEL(pack_nchw, "relayout_" TY_ELEMENT, "pack_nchw"),
                  TY_KERNEL(unpack_nchw, "relayout_" TY_ELEMENT, "unpack_nchw"))

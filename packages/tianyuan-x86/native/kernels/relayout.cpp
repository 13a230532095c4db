// relayout between plain and blocked forms in float32; padding lanes become zero.
#include "relayout.hpp"

#include "tile.hpp"

namespace TY_ISA {
namespace {

TY_INLINE int64_t blocks_of(int64_t channels) { return (channels + VF - 1) / VF; }

// Channels of `images` x `channels` x `pixels` into blocks of VF, or back.
void pack_channels(const ty_ctx *ctx, float *to, const float *from, int64_t images,
                   int64_t channels, int64_t pixels) {
  const int64_t blocks = blocks_of(channels);
  ty_parallel(ctx, images * blocks, 1 + 4096 / (pixels * VF + 1),
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t at = begin; at < end; ++at) {
                  const int64_t c0 = at % blocks * VF;
                  const int64_t valid = channels - c0 < VF ? channels - c0 : VF;
                  const float *source = from + (at / blocks * channels + c0) * pixels;
                  float *target = to + at * pixels * VF;
                  for (int64_t i = 0; i < pixels; i += VF) {
                    const int64_t some = pixels - i < VF ? pixels - i : VF;
                    const vtail tail = vtail_of(some);
                    vf block[VF];
#pragma GCC unroll 16
                    for (int r = 0; r < VF; ++r)
                      block[r] = r < valid ? vload_tail(source + r * pixels + i, tail) : vzero();
                    vtranspose(block);
                    for (int64_t r = 0; r < some; ++r) vstore(target + (i + r) * VF, block[r]);
                  }
                }
              });
}

void unpack_channels(const ty_ctx *ctx, float *to, const float *from, int64_t images,
                     int64_t channels, int64_t pixels) {
  const int64_t blocks = blocks_of(channels);
  ty_parallel(ctx, images * blocks, 1 + 4096 / (pixels * VF + 1),
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t at = begin; at < end; ++at) {
                  const int64_t c0 = at % blocks * VF;
                  const int64_t valid = channels - c0 < VF ? channels - c0 : VF;
                  const float *source = from + at * pixels * VF;
                  float *target = to + (at / blocks * channels + c0) * pixels;
                  for (int64_t i = 0; i < pixels; i += VF) {
                    const int64_t some = pixels - i < VF ? pixels - i : VF;
                    const vtail tail = vtail_of(some);
                    vf block[VF];
#pragma GCC unroll 16
                    for (int r = 0; r < VF; ++r)
                      block[r] = r < some ? vload(source + (i + r) * VF) : vzero();
                    vtranspose(block);
                    for (int64_t r = 0; r < valid; ++r)
                      vstore_tail(target + r * pixels + i, block[r], tail);
                  }
                }
              });
}

int pack_nchw(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
              void *) {
  const int64_t *s = inputs[0].shape;
  pack_channels(ctx, static_cast<float *>(outputs[0].data),
                static_cast<const float *>(inputs[0].data), s[0], s[1], s[2] * s[3]);
  return 0;
}

int unpack_nchw(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                void *) {
  const int64_t *s = outputs[0].shape;
  unpack_channels(ctx, static_cast<float *>(outputs[0].data),
                  static_cast<const float *>(inputs[0].data), s[0], s[1], s[2] * s[3]);
  return 0;
}

// A depthwise weight (G, 1, kh, kw) has the form of one image of G channels.
int pack_goihw(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
               void *) {
  const int64_t *s = inputs[0].shape;
  pack_channels(ctx, static_cast<float *>(outputs[0].data),
                static_cast<const float *>(inputs[0].data), 1, s[0], s[1] * s[2] * s[3]);
  return 0;
}

int unpack_goihw(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                 void *) {
  const int64_t *s = outputs[0].shape;
  unpack_channels(ctx, static_cast<float *>(outputs[0].data),
                  static_cast<const float *>(inputs[0].data), 1, s[0], s[1] * s[2] * s[3]);
  return 0;
}

int pack_oihw(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
              void *) {
  const int64_t *s = inputs[0].shape, kernel = s[2] * s[3];
  pack_weight(ctx, static_cast<float *>(outputs[0].data),
              static_cast<const float *>(inputs[0].data),
              {s[0], s[1], kernel, s[1] * kernel, kernel});
  return 0;
}

int unpack_oihw(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                void *) {
  const int64_t *s = outputs[0].shape, kernel = s[2] * s[3], channels = s[1];
  const int64_t c_blocks = blocks_of(channels);
  const float *from = static_cast<const float *>(inputs[0].data);
  float *to = static_cast<float *>(outputs[0].data);
  ty_parallel(ctx, s[0], 1 + 4096 / (channels * kernel + 1),
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t o = begin; o < end; ++o)
                  for (int64_t c = 0; c < channels; ++c) {
                    const int64_t block = o / VF * c_blocks + c / VF;
                    const float *at = from + (block * kernel * VF + c % VF) * VF + o % VF;
                    for (int64_t k = 0; k < kernel; ++k)
                      to[(o * channels + c) * kernel + k] = at[k * VF * VF];
                  }
              });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(relayout, TY_KERNEL(pack_nchw, "relayout_f32", "pack_nchw"),
                  TY_KERNEL(unpack_nchw, "relayout_f32", "unpack_nchw"),
                  TY_KERNEL(pack_oihw, "relayout_f32", "pack_oihw"),
                  TY_KERNEL(unpack_oihw, "relayout_f32", "unpack_oihw"),
                  TY_KERNEL(pack_goihw, "relayout_f32", "pack_goihw"),
                  TY_KERNEL(unpack_goihw, "relayout_f32", "unpack_goihw"))

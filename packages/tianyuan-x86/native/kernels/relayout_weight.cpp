// Packing of weights, and relayout between plain and packed ones: matrices of VF x VF, one per
// kernel element, or blocks of VF groups.
#include "relayout.hpp"

#include "tile.hpp"

namespace TY_ISA {
namespace {

// Block (o0, c0) of a weight whose (c, kernel) pairs lie contiguous: VF rows, transposed.
void pack_rows(float *to, const float *from, const WeightForm &form, int64_t o0, int64_t c0) {
  const int64_t outputs = lesser(VF, form.o - o0);
  const int64_t channels = lesser(VF, form.c - c0);
  const int64_t count = channels * form.kernel;
  const float *rows = from + o0 * form.o_step + c0 * form.c_step;
  for (int64_t q = 0; q < count; q += VF) {
    const int64_t some = lesser(VF, count - q);
    vf block[VF];
    vload_columns(block, rows + q, form.o_step, outputs, some);
    int64_t c = q / form.kernel, k = q % form.kernel;
    for (int64_t i = 0; i < some; ++i) {
      vstore(to + (k * VF + c) * VF, block[i]);
      if (++k == form.kernel) {
        k = 0;
        ++c;
      }
    }
  }
  for (int64_t k = 0; k < form.kernel; ++k)
    for (int64_t c = channels; c < VF; ++c) vstore(to + (k * VF + c) * VF, vzero());
}

// Block of a weight of any form: outputs are the lanes, gathered where they are not contiguous.
void pack_lanes(float *to, const float *from, const WeightForm &form, int64_t o0, int64_t c0) {
  const int64_t outputs = lesser(VF, form.o - o0);
  const int64_t channels = lesser(VF, form.c - c0);
  const vtail tail = vtail_of(outputs);
  float lanes[VF];
  for (int64_t c = 0; c < VF; ++c) {
    const float *at = from + o0 * form.o_step + (c0 + c) * form.c_step;
    for (int64_t k = 0; k < form.kernel; ++k) {
      vf x = vzero();
      if (c < channels && form.o_step == 1) {
        x = vload_tail(at + k, tail);
      } else if (c < channels) {
        for (int64_t r = 0; r < VF; ++r) lanes[r] = r < outputs ? at[r * form.o_step + k] : 0.0f;
        x = vload(lanes);
      }
      vstore(to + (k * VF + c) * VF, x);
    }
  }
}

}  // namespace

void pack_block(float *to, const float *from, const WeightForm &form, int64_t o0, int64_t c0) {
  if (form.c_step == form.kernel)
    pack_rows(to, from, form, o0, c0);
  else
    pack_lanes(to, from, form, o0, c0);
}

void pack_weight(const ty_ctx *ctx, float *to, const float *from, const WeightForm &form) {
  const int64_t o_blocks = blocks_of(form.o), c_blocks = blocks_of(form.c);
  const int64_t size = form.kernel * VF * VF;
  ty_parallel(ctx, o_blocks * c_blocks, 1 + 8192 / (size + 1),
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t at = begin; at < end; ++at) {
                  const int64_t o0 = at / c_blocks * VF, c0 = at % c_blocks * VF;
                  pack_block(to + at * size, from, form, o0, c0);
                }
              });
}

namespace {

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

TY_EXPORT_KERNELS(relayout_weight, TY_KERNEL(pack_oihw, "relayout_f32", "pack_oihw"),
                  TY_KERNEL(unpack_oihw, "relayout_f32", "unpack_oihw"),
                  TY_KERNEL(pack_goihw, "relayout_f32", "pack_goihw"),
                  TY_KERNEL(unpack_goihw, "relayout_f32", "unpack_goihw"))

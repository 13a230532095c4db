// lookup_quantized, on plain values and on channels-last images, whose padding is looked up along.
#include "int8_lookup.hpp"

namespace TY_ISA {
namespace {

int run(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, int64_t size) {
  const uint8_t *x = static_cast<const uint8_t *>(inputs[0].data);
  const uint8_t *entries = static_cast<const uint8_t *>(inputs[1].data);
  uint8_t *y = static_cast<uint8_t *>(outputs[0].data);
  Q8Table table;
  const int first = inputs[0].dtype == TY_INT8 ? 128 : 0;
  for (int i = 0; i < 256; ++i) table.entries[i] = entries[i ^ first];
  ty_parallel(ctx, size, 4 * GRAIN, [&](int64_t begin, int64_t end, int32_t) {
    q8_look_up(table, y + begin, x + begin, end - begin);
  });
  return 0;
}

int flat(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *, void *) {
  return run(ctx, inputs, outputs, ty_count(inputs[0]));
}

int image(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
          void *) {
  const int64_t *s = inputs[0].shape;
  return run(ctx, inputs, outputs, s[0] * s[2] * s[3] * q8_channels(s[1]));
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_lookup, TY_KERNEL(flat, "lookup_q8", "flat"),
                  TY_KERNEL(image, "lookup_q8", "image"))

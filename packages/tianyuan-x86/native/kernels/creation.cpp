// full, arange and eye in any dtype, and one_hot.
#include "fill.hpp"

namespace TY_ISA {
namespace {

int full(const ty_ctx *ctx, const ty_tensor *, ty_tensor *outputs, const ty_attrs *raw, void *) {
  fill(ctx, outputs[0], reinterpret_cast<const ty_full_attrs *>(raw)->value);
  return 0;
}

template <class T>
void arange_items(const ty_ctx *ctx, T *to, int64_t count, double start, double step) {
  ty_parallel(ctx, count, COPY_GRAIN, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t i = begin; i < end; ++i) {
      // Two roundings as the definition has, so that the product must not be fused into the sum.
      volatile double offset = (double)i * step;
      to[i] = (T)(start + offset);
    }
  });
}

int arange(const ty_ctx *ctx, const ty_tensor *, ty_tensor *outputs, const ty_attrs *raw, void *) {
  const auto *attrs = reinterpret_cast<const ty_arange_attrs *>(raw);
  const int64_t n = attrs->count;
  const double start = attrs->start, step = attrs->step;
  void *to = outputs[0].data;
  switch (outputs[0].dtype) {
    case TY_INT32:
      arange_items(ctx, static_cast<int32_t *>(to), n, start, step);
      return 0;
    case TY_INT64:
      arange_items(ctx, static_cast<int64_t *>(to), n, start, step);
      return 0;
    case TY_UINT8:
      arange_items(ctx, static_cast<uint8_t *>(to), n, start, step);
      return 0;
    case TY_FLOAT32:
      arange_items(ctx, static_cast<float *>(to), n, start, step);
      return 0;
    case TY_FLOAT64:
      arange_items(ctx, static_cast<double *>(to), n, start, step);
      return 0;
    default:
      return ty_fail(ctx, "arange: dtype is not served, got code %d", (int)outputs[0].dtype);
  }
}

int eye(const ty_ctx *ctx, const ty_tensor *, ty_tensor *outputs, const ty_attrs *raw, void *) {
  const auto *attrs = reinterpret_cast<const ty_eye_attrs *>(raw);
  const int64_t itemsize = ty_itemsize(outputs[0].dtype);
  uint64_t one = 0;
  encode(outputs[0].dtype, 1.0, &one);
  clear(ctx, outputs[0]);
  char *to = static_cast<char *>(outputs[0].data);
  for (int64_t row = 0; row < attrs->rows; ++row) {
    const int64_t column = row + attrs->k;
    if (column < 0 || column >= attrs->cols) continue;
    memcpy(to + (row * attrs->cols + column) * itemsize, &one, (size_t)itemsize);
  }
  return 0;
}

int one_hot(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
            void *) {
  const int64_t depth = reinterpret_cast<const ty_one_hot_attrs *>(raw)->depth;
  const int64_t itemsize = ty_itemsize(outputs[0].dtype), count = ty_count(inputs[0]);
  const bool wide = inputs[0].dtype == TY_INT64;
  const auto at = [&](int64_t i) -> int64_t {
    return wide ? static_cast<const int64_t *>(inputs[0].data)[i]
                : static_cast<const int32_t *>(inputs[0].data)[i];
  };
  for (int64_t i = 0; i < count; ++i) {
    if (at(i) < 0 || at(i) >= depth) {
      return ty_fail_as(TY_BAD_INDEX, ctx,
                        "one_hot: index out of range, got %lld, expected 0 to %lld",
                        (long long)at(i), (long long)(depth - 1));
    }
  }
  uint64_t one = 0;
  encode(outputs[0].dtype, 1.0, &one);
  clear(ctx, outputs[0]);
  char *to = static_cast<char *>(outputs[0].data);
  for (int64_t i = 0; i < count; ++i) {
    memcpy(to + (i * depth + at(i)) * itemsize, &one, (size_t)itemsize);
  }
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(creation, TY_KERNEL(full, "full_any", "fill"),
                  TY_KERNEL(arange, "arange_any", "loop"), TY_KERNEL(eye, "eye_any", "fill"),
                  TY_KERNEL(one_hot, "one_hot_any", "fill"))

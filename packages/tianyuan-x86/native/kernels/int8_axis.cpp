// quantize and dequantize with a scale and zero point per extent of an axis, and those of int32.
//
// A value is [outer][channels][inner]: a run of `inner` values has one scale. Where the axis is the
// last one, runs are one value long, and whole rows are computed with vectors of scales instead.
#include "int8_values.hpp"

namespace TY_ISA {
namespace {

// Scales and zero points by channel, padded to whole vectors.
struct Table {
  float *scale;
  int32_t *zero;
  int64_t channels, rows, inner;
};

template <typename Attrs>
Table table_of(const Attrs &a, const ty_tensor &x, void *workspace) {
  Table t = {};
  const int64_t *zeros = TY_INTS(&a, a.zero_points);
  const double *scales = TY_FLOATS(&a, a.scales);
  t.inner = 1;
  t.channels = a.axis < 0 ? 1 : x.shape[a.axis];
  if (a.axis < 0) t.inner = ty_count(x);
  for (int64_t i = a.axis + 1; a.axis >= 0 && i < x.ndim; ++i) t.inner *= x.shape[i];
  const int64_t size = t.channels * t.inner;
  t.rows = size > 0 ? ty_count(x) / size : 0;
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  t.scale = static_cast<float *>(scratch.take(q8_columns_bytes(t.channels)));
  t.zero = static_cast<int32_t *>(scratch.take(q8_columns_bytes(t.channels)));
  for (int64_t c = 0; c < round_up(t.channels, 16); ++c) {
    t.scale[c] = c < t.channels ? static_cast<float>(scales[c]) : 1.0f;
    t.zero[c] = c < t.channels ? static_cast<int32_t>(zeros[c]) : 0;
  }
  return t;
}

// Calls body(at, channel, count) for each run of values of one channel.
template <typename Body>
TY_INLINE void by_run(const ty_ctx *ctx, const Table &t, const Body &body) {
  ty_parallel(ctx, t.rows * t.channels, 1 + GRAIN / (t.inner + 1),
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t run = begin; run < end; ++run)
                  body(run * t.inner, run % t.channels, t.inner);
              });
}

// Calls body(at, channel, count) for each 16 channels of each row.
template <typename Body>
TY_INLINE void by_row(const ty_ctx *ctx, const Table &t, const Body &body) {
  ty_parallel(ctx, t.rows, 1 + GRAIN / (t.channels + 1), [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t c = 0; c < t.channels; c += 16) body(row * t.channels + c, c, t.channels - c);
  });
}

// 16 quotients with a zero point each, rounded and clamped to [least, least + 255].
TY_INLINE Q8Lanes rounded(const float *x, const float *scale, const int32_t *zero, int32_t least,
                          int64_t count) {
  Q8Lanes found;
#pragma GCC unroll 2
  for (int i = 0; i < Q8_PARTS; ++i) {
    const int64_t some = count > i * TY_VF ? count - i * TY_VF : 0;
    const vf t = vdiv(vload_tail(x + i * TY_VF, vtail_of(some)), vload(scale + i * TY_VF));
    const vi z = vi_load(zero + i * TY_VF);
    const vf lower = vi_to_vf(vi_sub(vi_set1(least), z));
    const vf upper = vi_to_vf(vi_sub(vi_set1(least + 255), z));
    found.part[i] = vi_add(vf_to_vi(vmin_fast(vmax_fast(t, lower), upper)), z);
  }
  return found;
}

int quantize(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
             void *workspace) {
  const Table t =
      table_of(*reinterpret_cast<const ty_quantize_attrs *>(attrs), inputs[0], workspace);
  const float *x = static_cast<const float *>(inputs[0].data);
  uint8_t *y = static_cast<uint8_t *>(outputs[0].data);
  const int32_t least = outputs[0].dtype == TY_INT8 ? -128 : 0;
  if (t.inner == 1) {
    by_row(ctx, t, [&](int64_t at, int64_t c, int64_t count) {
      q8_store16(y + at, rounded(x + at, t.scale + c, t.zero + c, least, count), count);
    });
    return 0;
  }
  by_run(ctx, t, [&](int64_t at, int64_t c, int64_t count) {
    const int32_t zero = t.zero[c];
    const Q8Store form = {static_cast<float>(least - zero), static_cast<float>(least + 255 - zero),
                          zero};
    const vf scale = vset1(t.scale[c]);
    for (int64_t i = 0; i < count; i += 16)
      store(y + at + i, divided(x + at + i, count - i, scale), count - i, form);
  });
  return 0;
}

int dequantize(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
               const ty_attrs *attrs, void *workspace) {
  const Table t =
      table_of(*reinterpret_cast<const ty_dequantize_attrs *>(attrs), inputs[0], workspace);
  const uint8_t *x = static_cast<const uint8_t *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  const bool is_signed = inputs[0].dtype == TY_INT8;
  if (t.inner == 1) {
    by_row(ctx, t, [&](int64_t at, int64_t c, int64_t count) {
      const Q8Lanes stored = q8_load16(x + at, count, is_signed);
      Scaled found;
      for (int i = 0; i < Q8_PARTS; ++i) {
        const vi centred = vi_sub(stored.part[i], vi_load(t.zero + c + i * TY_VF));
        found.part[i] = vmul(vi_to_vf(centred), vload(t.scale + c + i * TY_VF));
      }
      store_floats(y + at, found, count);
    });
    return 0;
  }
  by_run(ctx, t, [&](int64_t at, int64_t c, int64_t count) {
    for (int64_t i = 0; i < count; i += 16)
      store_floats(y + at + i, scaled(x + at + i, count - i, is_signed, t.zero[c], t.scale[c]),
                   count - i);
  });
  return 0;
}

// Whole numbers of 32 bits, and their distance from a zero point, need a wider float.
int quantize_wide(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                  const ty_attrs *attrs, void *workspace) {
  const Table t =
      table_of(*reinterpret_cast<const ty_quantize_attrs *>(attrs), inputs[0], workspace);
  const float *x = static_cast<const float *>(inputs[0].data);
  int32_t *y = static_cast<int32_t *>(outputs[0].data);
  by_run(ctx, t, [&](int64_t at, int64_t c, int64_t count) {
    for (int64_t i = at; i < at + count; ++i) {
      const float quotient = x[i] / t.scale[c];
      const double found = __builtin_rint(static_cast<double>(quotient)) + t.zero[c];
      if (!(found > INT32_MIN))
        y[i] = INT32_MIN;
      else
        y[i] = found < INT32_MAX ? static_cast<int32_t>(found) : INT32_MAX;
    }
  });
  return 0;
}

int dequantize_wide(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                    const ty_attrs *attrs, void *workspace) {
  const Table t =
      table_of(*reinterpret_cast<const ty_dequantize_attrs *>(attrs), inputs[0], workspace);
  const int32_t *x = static_cast<const int32_t *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  by_run(ctx, t, [&](int64_t at, int64_t c, int64_t count) {
    for (int64_t i = at; i < at + count; ++i)
      y[i] = static_cast<float>(static_cast<int64_t>(x[i]) - t.zero[c]) * t.scale[c];
  });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_axis, TY_KERNEL(quantize, "quantize_q8", "axis"),
                  TY_KERNEL(dequantize, "dequantize_q8", "axis"),
                  TY_KERNEL(quantize_wide, "quantize_q8", "wide"),
                  TY_KERNEL(dequantize_wide, "dequantize_q8", "wide"))

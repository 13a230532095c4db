// Depthwise convolution of blocked images in bfloat16: multiplied and summed in float32.
#include "bf16_conv.hpp"

#include "conv_shape.hpp"

namespace TY_ISA {
namespace {

struct Depthwise {
  ConvShape shape;
  const uint16_t *x, *residual;
  const float *weight, *bias;  // the weight in blocks of 16 groups, as float32
  uint16_t *y;
  Epilogue epilogue;
};

template <typename Attrs>
Depthwise depthwise_of(const Attrs &attrs, const ty_tensor *inputs, const ty_tensor &y) {
  Depthwise d = {};
  d.shape = conv_shape(attrs, inputs[0].shape, inputs[1].shape, y.shape);
  d.x = static_cast<const uint16_t *>(inputs[0].data);
  d.weight = static_cast<const float *>(inputs[1].data);
  d.y = static_cast<uint16_t *>(y.data);
  d.epilogue = as_clip({ACT_IDENTITY, 0.0f, 0.0f});
  return d;
}

// Output rows of one block of channels.
struct Plane {
  const Depthwise *d;
  const uint16_t *x, *residual;
  const float *weight;
  uint16_t *y;
  vf bias;
  vm valid;
};

TY_INLINE void store_pixel(const Plane &p, int64_t at, vf sum) {
  const Epilogue &e = p.d->epilogue;
  if (p.residual) sum = vadd(sum, vload_bf16(p.residual + at * VF));
  if (e.activation == ACT_CLIP)
    sum = vmin_fast(vset1(e.upper), vmax_fast(vset1(e.lower), sum));
  else
    sum = activate_smooth(sum, e.activation);
  vstore_element_of(p.y + at * VF, sum, p.valid);
}

// Any pixel: the kernel elements [i0, i1) x [j0, j1) meet the source.
vf sum_pixel(const Plane &p, int64_t oy, int64_t ox) {
  const ConvShape &s = p.d->shape;
  const int64_t top = oy * s.sh - s.top, left = ox * s.sw - s.left;
  vf even = p.bias, odd = vzero();
  for (int64_t i = 0; i < s.kh; ++i) {
    const int64_t y = top + i * s.dh;
    if (y < 0 || y >= s.h) continue;
    for (int64_t j = 0; j < s.kw; ++j) {
      const int64_t x = left + j * s.dw;
      if (x < 0 || x >= s.w) continue;
      const vf value = vload_bf16(p.x + (y * s.w + x) * VF);
      vf &sum = j % 2 ? odd : even;
      sum = vfma(vload(p.weight + (i * s.kw + j) * VF), value, sum);
    }
  }
  return vadd(even, odd);
}

// COUNT neighbouring pixels of a kernel of K columns without dilation whose rows [i0, i1) meet the
// source: each source pixel is widened once per kernel row. At an EDGE, source columns outside of
// [0, w) are left out; `left` is that of the first.
template <int K, int STRIDE, int COUNT, bool EDGE>
TY_INLINE void run_pixels(const Plane &p, const uint16_t *x, int64_t left, int64_t i0, int64_t i1,
                          int64_t at) {
  const ConvShape &s = p.d->shape;
  vf sums[COUNT];
#pragma GCC unroll 8
  for (int c = 0; c < COUNT; ++c) sums[c] = p.bias;
  for (int64_t i = i0; i < i1; ++i) {
    const uint16_t *row = x + i * s.dh * s.w * VF;
    vf weight[K];
#pragma GCC unroll 7
    for (int j = 0; j < K; ++j) weight[j] = vload(p.weight + (i * K + j) * VF);
#pragma GCC unroll 24
    for (int q = 0; q < (COUNT - 1) * STRIDE + K; ++q) {
      if (EDGE && (left + q < 0 || left + q >= s.w)) continue;
      const vf value = vload_bf16(row + q * VF);
#pragma GCC unroll 8
      for (int c = 0; c < COUNT; ++c) {
        const int j = q - c * STRIDE;
        if (j >= 0 && j < K) sums[c] = vfma(weight[j], value, sums[c]);
      }
    }
  }
  if (p.d->epilogue.activation == ACT_CLIP) {
#pragma GCC unroll 8
    for (int c = 0; c < COUNT; ++c) store_pixel(p, at + c, sums[c]);
  } else {
    alignas(64) float memory[COUNT * VF];
#pragma GCC unroll 8
    for (int c = 0; c < COUNT; ++c) vstore(memory + c * VF, sums[c]);
    for (int c = 0; c < COUNT; ++c) store_pixel(p, at + c, vload(memory + c * VF));
  }
}

// Runs of 7 where these divide the row, as the planes of most networks, else of 8; then what is
// left.
template <int K, int STRIDE>
void run_row(const Plane &p, int64_t oy) {
  const ConvShape &s = p.d->shape;
  const int64_t top = oy * s.sh - s.top;
  const int64_t i0 = top < 0 ? lesser(s.kh, ceil_div(-top, s.dh)) : 0;
  const int64_t i1 = greater(i0, lesser(s.kh, ceil_div(greater(0, s.h - top), s.dh)));
  const int64_t run = s.ow % 8 != 0 && s.ow % 7 == 0 ? 7 : 8;
  for (int64_t ox = 0; ox < s.ow;) {
    const int64_t left = ox * STRIDE - s.left, at = oy * s.ow + ox, rest = s.ow - ox;
    const uint16_t *x = p.x + (top * s.w + left) * VF;
    const int64_t count = rest >= run ? run : rest >= 4 ? 4 : rest >= 2 ? 2 : 1;
    const bool edge = left < 0 || left + (count - 1) * STRIDE + K > s.w;
#define PIXELS(n)                                              \
  case n:                                                      \
    if (edge)                                                  \
      run_pixels<K, STRIDE, n, true>(p, x, left, i0, i1, at);  \
    else                                                       \
      run_pixels<K, STRIDE, n, false>(p, x, left, i0, i1, at); \
    break;
    switch (count) {
      PIXELS(8)
      PIXELS(7)
      PIXELS(4)
      PIXELS(2)
      PIXELS(1)
    }
#undef PIXELS
    ox += count;
  }
}

void run_any_row(const Plane &p, int64_t oy) {
  const ConvShape &s = p.d->shape;
  for (int64_t ox = 0; ox < s.ow; ++ox) store_pixel(p, oy * s.ow + ox, sum_pixel(p, oy, ox));
}

typedef void (*Row)(const Plane &, int64_t);

Row row_of(const ConvShape &s) {
  if (s.dw != 1 || s.sw > 2) return run_any_row;
  if (s.kw == 3) return s.sw == 1 ? run_row<3, 1> : run_row<3, 2>;
  if (s.kw == 5) return s.sw == 1 ? run_row<5, 1> : run_row<5, 2>;
  if (s.kw == 7 && s.sw == 1) return run_row<7, 1>;
  return run_any_row;
}

int run(const ty_ctx *ctx, const Depthwise &d) {
  const ConvShape &s = d.shape;
  const int64_t blocks = ceil_div(s.c, VF), work = s.ow * s.kh * s.kw + 1;
  const Row row = row_of(s);
  ty_parallel(ctx, s.n * blocks * s.oh, 1 + 4096 / work, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t plane = at / s.oh, block = plane % blocks, out = plane * s.oh * s.ow * VF;
      const vtail valid = vtail_of(s.c - block * VF);
      const Plane p = {&d,
                       d.x + plane * s.h * s.w * VF,
                       d.residual ? d.residual + out : nullptr,
                       d.weight + block * s.kh * s.kw * VF,
                       d.y + out,
                       d.bias ? vload_tail(d.bias + block * VF, valid) : vzero(),
                       vtail_mask(valid)};
      row(p, at % s.oh);
    }
  });
  return 0;
}

int conv2d(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
           void *) {
  const auto &a = *reinterpret_cast<const ty_conv2d_attrs *>(attrs);
  return run(ctx, depthwise_of(a, inputs, outputs[0]));
}

int conv2d_fused(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                 const ty_attrs *attrs, void *) {
  const auto &a = *reinterpret_cast<const ty_conv2d_fused_attrs *>(attrs);
  Depthwise d = depthwise_of(a, inputs, outputs[0]);
  if (read_epilogue(ctx, a, inputs, &d)) return 1;
  d.epilogue = as_clip(d.epilogue);
  return run(ctx, d);
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(bf16_depthwise, TY_KERNEL(conv2d, "conv2d_bf16", "depthwise"),
                  TY_KERNEL(conv2d_fused, "conv2d_fused_bf16", "depthwise"),
                  TY_KERNEL(conv2d_fused, "conv2d_fused_bf16", "depthwise_unbiased"))

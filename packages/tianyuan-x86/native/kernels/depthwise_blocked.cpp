// Depthwise convolution of blocked images, in either element: multiplied and summed in float32.
#include "bands.hpp"
#include "depthwise.hpp"

namespace TY_ISA {
namespace {

// Kernel rows [i0, i1) and columns [j0, j1) that meet the source, `x` at kernel element (0, 0).
struct Window {
  const element *x;
  const float *weight;
  int64_t i0, i1, j0, j1;
  int64_t row, column, step;  // elements between kernel rows, kernel columns, output pixels
  int64_t kw;
};

template <int COUNT>
TY_INLINE void sum_pixels(const Window &w, const BlockRow &r, vf *sums) {
#pragma GCC unroll 8
  for (int p = 0; p < COUNT; ++p) sums[p] = r.bias;
  for (int64_t i = w.i0; i < w.i1; ++i) {
    for (int64_t j = w.j0; j < w.j1; ++j) {
      const vf weight = vload(w.weight + (i * w.kw + j) * VF);
      const element *x = w.x + i * w.row + j * w.column;
#pragma GCC unroll 8
      for (int p = 0; p < COUNT; ++p)
        sums[p] = vfma(weight, vload_element(x + p * w.step), sums[p]);
    }
  }
}

// One pixel at the border: few taps, so that two chains of sums hide what an addition takes.
TY_INLINE vf sum_border(const Window &w, const BlockRow &r) {
  vf even = r.bias, odd = vzero();
  for (int64_t i = w.i0; i < w.i1; ++i) {
    const element *x = w.x + i * w.row;
    const float *weight = w.weight + i * w.kw * VF;
    int64_t j = w.j0;
    for (; j + 2 <= w.j1; j += 2) {
      even = vfma(vload(weight + j * VF), vload_element(x + j * w.column), even);
      odd = vfma(vload(weight + (j + 1) * VF), vload_element(x + (j + 1) * w.column), odd);
    }
    if (j < w.j1) even = vfma(vload(weight + j * VF), vload_element(x + j * w.column), even);
  }
  return vadd(even, odd);
}

template <int COUNT>
TY_INLINE void run_pixels(const BlockRow &r, const Window &w, int64_t at) {
  vf sums[COUNT];
  sum_pixels<COUNT>(w, r, sums);
  store_pixels<COUNT>(r, at, sums);
}

// First kernel element >= 0 and end of those < extent, for an offset of the first.
TY_INLINE void clip_taps(int64_t first, int64_t dilation, int64_t count, int64_t extent,
                         int64_t *begin, int64_t *end) {
  *begin = first < 0 ? lesser(count, ceil_div(-first, dilation)) : 0;
  const int64_t room = extent - first;
  *end = room <= 0 ? *begin : greater(*begin, lesser(count, ceil_div(room, dilation)));
}

// Any kernel: one output row of the plane of `x`.
void run_any_row(const ConvShape &s, const BlockRow &r, Window w, const element *x, int64_t oy) {
  const int64_t top = oy * s.sh - s.top, reach = s.w - 1 + s.left - (s.kw - 1) * s.dw;
  clip_taps(top, s.dh, s.kh, s.h, &w.i0, &w.i1);
  const int64_t inner0 = lesser(s.ow, ceil_div(s.left, s.sw));
  const int64_t inner1 = reach < 0 ? inner0 : greater(inner0, lesser(s.ow, reach / s.sw + 1));
  int64_t ox = 0;
  while (ox < s.ow) {
    const int64_t left = ox * s.sw - s.left;
    const int64_t run = ox < inner0 ? 0 : inner1 - ox;  // pixels from here on that meet every tap
    w.x = x + (top * s.w + left) * VF;
    w.j0 = 0;
    w.j1 = s.kw;
    if (run >= 8) {
      run_pixels<8>(r, w, ox);
      ox += 8;
    } else if (run >= 4) {
      run_pixels<4>(r, w, ox);
      ox += 4;
    } else if (run >= 2) {
      run_pixels<2>(r, w, ox);
      ox += 2;
    } else {
      clip_taps(left, s.dw, s.kw, s.w, &w.j0, &w.j1);
      store_pixel(r, r.epilogue, ox, sum_border(w, r));
      ++ox;
    }
  }
}

int run_blocked(const ty_ctx *ctx, const Depthwise &d) {
  const ConvShape &s = d.shape;
  const int64_t blocks = blocks_of(s.c), line = s.w * VF;
  const int64_t work = s.ow * s.kh * s.kw + 1;
  if (s.n * blocks * s.oh * s.ow <= 0) return 0;
  const RunDepthwise run = run_depthwise_of(s);
  const Planes planes = {s.n, blocks, s.oh, s.oh * s.ow, work};
  for_bands(ctx, planes, 4096, [&](int64_t plane, int64_t begin, int64_t end) {
    const int64_t block = plane % blocks, channels = s.c - block * VF;
    const vtail valid = vtail_of(channels);
    BlockRow row = {
        nullptr, nullptr,        d.bias ? vload_tail(d.bias + block * VF, valid) : vzero(),
        valid,   channels >= VF, as_clip(d.epilogue)};
    const element *x = d.x + plane * s.h * line;
    const float *weight = d.weight + block * s.kh * s.kw * VF;
    const int64_t at = (plane * s.oh + begin) * s.ow * VF;
    row.y = d.y + at;
    row.residual = d.residual ? d.residual + at : nullptr;
    if (run) {
      run({&s, x, s.h, weight}, row, begin, end);
      return;
    }
    Window w = {};
    w.weight = weight;
    w.row = s.dh * line;
    w.column = s.dw * VF;
    w.step = s.sw * VF;
    w.kw = s.kw;
    for (int64_t oy = begin; oy < end; ++oy)
      run_any_row(s, row_at(row, (oy - begin) * s.ow * VF), w, x, oy);
  });
  return 0;
}

int conv2d(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
           void *) {
  const ty_conv2d_attrs &a = *reinterpret_cast<const ty_conv2d_attrs *>(attrs);
  return run_blocked(ctx, depthwise_of(a, inputs, outputs[0]));
}

int conv2d_fused(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                 const ty_attrs *attrs, void *) {
  Depthwise d;
  if (depthwise_fused_of(ctx, inputs, outputs[0], attrs, &d)) return 1;
  return run_blocked(ctx, d);
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(depthwise_blocked, TY_KERNEL(conv2d, "conv2d_" TY_ELEMENT, "depthwise"),
#if defined(__AVX512BF16__)
                  TY_KERNEL(conv2d_fused, "conv2d_fused_bf16", "depthwise_unbiased"),
#endif
                  TY_KERNEL(conv2d_fused, "conv2d_fused_" TY_ELEMENT, "depthwise"))

// Rows of a depthwise convolution on blocked images in either element: VF channels of one block
// side by side, and each source pixel loaded once for all the taps of a kernel row that meet it.
#pragma once

#include "conv_shape.hpp"
#include "element.hpp"

namespace TY_ISA {
namespace {

// What forward kernels share once their attrs are read.
struct Depthwise {
  ConvShape shape;
  const element *x, *residual;
  const float *weight, *bias;
  element *y;
  Epilogue epilogue;
};

template <typename Attrs>
inline Depthwise depthwise_of(const Attrs &attrs, const ty_tensor *inputs, const ty_tensor &y) {
  Depthwise d = {};
  d.shape = conv_shape(attrs, inputs[0].shape, inputs[1].shape, y.shape);
  d.x = static_cast<const element *>(inputs[0].data);
  d.weight = static_cast<const float *>(inputs[1].data);
  d.y = static_cast<element *>(y.data);
  return d;
}

inline int depthwise_fused_of(const ty_ctx *ctx, const ty_tensor *inputs, const ty_tensor &y,
                              const ty_attrs *attrs, Depthwise *d) {
  const ty_conv2d_fused_attrs &a = *reinterpret_cast<const ty_conv2d_fused_attrs *>(attrs);
  *d = depthwise_of(a, inputs, y);
  return read_epilogue(ctx, a, inputs, d);
}

// Sums of bfloat16 start from the bias; those of float32 meet it last.
enum { BIAS_FIRST = sizeof(element) < sizeof(float) };

// Where output pixels of one block of channels go; `valid` lanes are channels.
struct BlockRow {
  const element *residual;  // or NULL
  element *y;
  vf bias;
  vtail valid;
  bool full;
  Epilogue epilogue;
};

TY_INLINE vf start_sum(const BlockRow &r) { return BIAS_FIRST ? r.bias : vzero(); }

TY_INLINE void store_pixel(const BlockRow &r, const Epilogue &e, int64_t at, vf sum) {
  if (!BIAS_FIRST) sum = vadd(sum, r.bias);
  if (r.residual) sum = vadd(sum, vload_element(r.residual + at * VF));
  sum = activate(sum, e);
  if (!r.full) sum = vselect(vtail_mask(r.valid), sum, vzero());
  vstore_element(r.y + at * VF, sum);
}

// The activation is a constant in either loop, so that sums stay in registers.
template <int COUNT>
TY_INLINE void store_pixels(const BlockRow &r, int64_t at, const vf *sums) {
  if (r.epilogue.activation == ACT_CLIP) {
    const Epilogue clip = {ACT_CLIP, r.epilogue.lower, r.epilogue.upper};
#pragma GCC unroll 8
    for (int p = 0; p < COUNT; ++p) store_pixel(r, clip, at + p, sums[p]);
  } else {
    for (int p = 0; p < COUNT; ++p) store_pixel(r, r.epilogue, at + p, sums[p]);
  }
}

enum { DEPTHWISE_ROWS = 8 };  // most rows of a kernel that a DepthwiseRow has

// The source of one output row: a pointer to the source row of each kernel row, NULL outside of the
// image, and the weight as [kernel row][kernel column][VF].
struct DepthwiseRow {
  const element *rows[DEPTHWISE_ROWS];
  const float *weight;
  int64_t kh, w, left;
  int64_t runs, length, longer;  // the row is cut into runs, some of which are one pixel longer
};

inline DepthwiseRow depthwise_row(const ConvShape &s, const float *weight) {
  const int64_t runs = ceil_div(s.ow, 8);
  return {{}, weight, s.kh, s.w, s.left, runs, s.ow / runs, s.ow % runs};
}

alignas(64) const element outside[VF] = {};

// COUNT neighbouring output pixels from ox on. Where EDGE, the first and last pixels that they meet
// may lie outside.
template <int KW, int STRIDE, int COUNT, bool EDGE>
TY_INLINE void sum_run(const DepthwiseRow &d, const BlockRow &r, int64_t ox, vf *sums) {
  const int64_t first = ox * STRIDE - d.left;
#pragma GCC unroll 8
  for (int p = 0; p < COUNT; ++p) sums[p] = start_sum(r);
  for (int64_t i = 0; i < d.kh; ++i) {
    if (!d.rows[i]) continue;
    const element *x = d.rows[i] + first * VF;
    vf weight[KW];
#pragma GCC unroll 7
    for (int j = 0; j < KW; ++j) weight[j] = vload(d.weight + (i * KW + j) * VF);
#pragma GCC unroll 32
    for (int q = 0; q < (COUNT - 1) * STRIDE + KW; ++q) {
      const element *at = x + q * VF;
      if (EDGE && q < KW - 1 && first + q < 0) at = outside;
      if (EDGE && q > (COUNT - 1) * STRIDE && first + q >= d.w) at = outside;
      vf pixel = vload_element(at);
      asm("" : "+v"(pixel));  // or else it is loaded again for each tap
#pragma GCC unroll 7
      for (int j = 0; j < KW; ++j) {
        const int p = (q - j) / STRIDE;
        if (q >= j && (q - j) % STRIDE == 0 && p < COUNT) sums[p] = vfma(weight[j], pixel, sums[p]);
      }
    }
  }
}

template <int KW, int STRIDE, int COUNT>
TY_INLINE void run_some(const DepthwiseRow &d, const BlockRow &r, int64_t ox) {
  const int64_t first = ox * STRIDE - d.left;
  vf sums[COUNT];
  if (first < 0 || first + (COUNT - 1) * STRIDE + KW > d.w)
    sum_run<KW, STRIDE, COUNT, true>(d, r, ox, sums);
  else
    sum_run<KW, STRIDE, COUNT, false>(d, r, ox, sums);
  store_pixels<COUNT>(r, ox, sums);
}

// One output row in runs of nearly equal length.
template <int KW, int STRIDE>
void run_depthwise_row(const DepthwiseRow &d, const BlockRow &r) {
  for (int64_t run = 0, ox = 0, length; run < d.runs; ++run, ox += length) {
    length = d.length + (run < d.longer);
    switch (length) {
      case 8:
        run_some<KW, STRIDE, 8>(d, r, ox);
        break;
      case 7:
        run_some<KW, STRIDE, 7>(d, r, ox);
        break;
      case 6:
        run_some<KW, STRIDE, 6>(d, r, ox);
        break;
      case 5:
        run_some<KW, STRIDE, 5>(d, r, ox);
        break;
      case 4:
        run_some<KW, STRIDE, 4>(d, r, ox);
        break;
      case 3:
        run_some<KW, STRIDE, 3>(d, r, ox);
        break;
      case 2:
        run_some<KW, STRIDE, 2>(d, r, ox);
        break;
      default:
        run_some<KW, STRIDE, 1>(d, r, ox);
    }
  }
}

typedef void (*RunDepthwiseRow)(const DepthwiseRow &, const BlockRow &);

// The function for a kernel and its horizontal stride, or NULL where there is none.
inline RunDepthwiseRow depthwise_row_of(const ConvShape &s) {
  if (s.kh > DEPTHWISE_ROWS || s.dw != 1 || s.sw > 2) return nullptr;
  // No window may begin before the padding that a kernel can reach over, or behind the last pixel.
  if (s.left >= s.kw || (s.ow - 1) * s.sw - s.left >= s.w) return nullptr;
  if (s.kw == 3) return s.sw == 1 ? run_depthwise_row<3, 1> : run_depthwise_row<3, 2>;
  if (s.kw == 5) return s.sw == 1 ? run_depthwise_row<5, 1> : run_depthwise_row<5, 2>;
  if (s.kw == 7 && s.sw == 1 && BIAS_FIRST) return run_depthwise_row<7, 1>;
  return nullptr;
}

}  // namespace
}  // namespace TY_ISA

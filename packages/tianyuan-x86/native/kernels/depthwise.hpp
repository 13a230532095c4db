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

// Where output pixels of one block of channels go; `valid` lanes are channels.
struct BlockRow {
  const element *residual;  // or NULL
  element *y;
  vf bias;
  vtail valid;
  bool full;
  Epilogue epilogue;
};

TY_INLINE void store_pixel(const BlockRow &r, const Epilogue &e, int64_t at, vf sum) {
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

// `r` at `distance` elements from it. Field by field: a copy of the whole would wait for its
// writer, and stores could change what is behind a reference.
TY_INLINE BlockRow row_at(const BlockRow &r, int64_t distance) {
  return {r.residual ? r.residual + distance : nullptr,
          r.y + distance,
          r.bias,
          r.valid,
          r.full,
          {r.epilogue.activation, r.epilogue.lower, r.epilogue.upper}};
}

enum { DEPTHWISE_ROWS = 8 };  // most rows of a kernel that run_depthwise serves

// One block of channels: where its source lies, and the weight as [kernel row][kernel column][VF].
struct DepthwisePlane {
  const ConvShape *shape;
  const element *x;  // row y of the image stands at y % kept
  int64_t kept;      // h where all rows are there
  const float *weight;
};

// Pointers to `count` source rows from `first` on, `step` apart; NULL outside of the image.
TY_INLINE void find_rows(const DepthwisePlane &d, int64_t first, int64_t step, int64_t count,
                         const element **rows) {
  const int64_t h = d.shape->h, line = d.shape->w * VF;
  int64_t at = first < 0 || first >= d.kept ? (first % d.kept + d.kept) % d.kept : first;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t y = first + i * step;
    rows[i] = y >= 0 && y < h ? d.x + at * line : nullptr;
    for (at += step; at >= d.kept;) at -= d.kept;
  }
}

alignas(64) const element outside[VF] = {};

// COUNT neighbouring output pixels from ox on. Where EDGE, the first and last pixels that they meet
// may lie outside.
template <int KW, int STRIDE, int COUNT, bool EDGE>
TY_INLINE void sum_run(const DepthwisePlane &d, const element *const *rows, const BlockRow &r,
                       int64_t first, vf *sums) {
#pragma GCC unroll 8
  for (int p = 0; p < COUNT; ++p) sums[p] = r.bias;
  for (int64_t i = 0; i < d.shape->kh; ++i) {
    if (!rows[i]) continue;
    const element *x = rows[i] + first * VF;
    vf weight[KW];
#pragma GCC unroll 7
    for (int j = 0; j < KW; ++j) weight[j] = vload(d.weight + (i * KW + j) * VF);
#pragma GCC unroll 32
    for (int q = 0; q < (COUNT - 1) * STRIDE + KW; ++q) {
      const element *at = x + q * VF;
      if (EDGE && q < KW - 1 && first + q < 0) at = outside;
      if (EDGE && q > (COUNT - 1) * STRIDE && first + q >= d.shape->w) at = outside;
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

// Whether a window of `count` output pixels from `first` on reaches over the image's columns.
TY_INLINE bool at_edge(const ConvShape &s, int64_t first, int count) {
  return first < 0 || first + (count - 1) * s.sw + s.kw > s.w;
}

template <int KW, int STRIDE, int COUNT>
TY_INLINE void run_some(const DepthwisePlane &d, const element *const *rows, const BlockRow &r,
                        int64_t ox) {
  const int64_t first = ox * STRIDE - d.shape->left;
  vf sums[COUNT];
  if (at_edge(*d.shape, first, COUNT))
    sum_run<KW, STRIDE, COUNT, true>(d, rows, r, first, sums);
  else
    sum_run<KW, STRIDE, COUNT, false>(d, rows, r, first, sums);
  store_pixels<COUNT>(r, ox, sums);
}

// One output row in runs of nearly equal length.
template <int KW, int STRIDE>
TY_INLINE void run_depthwise_row(const DepthwisePlane &d, const element *const *rows,
                                 const BlockRow &r) {
  const int64_t ow = d.shape->ow, runs = ceil_div(ow, 8), longer = ow % runs;
  for (int64_t run = 0, ox = 0, length; run < runs; ++run, ox += length) {
    length = ow / runs + (run < longer);
    switch (length) {
      case 8:
        run_some<KW, STRIDE, 8>(d, rows, r, ox);
        break;
      case 7:
        run_some<KW, STRIDE, 7>(d, rows, r, ox);
        break;
      case 6:
        run_some<KW, STRIDE, 6>(d, rows, r, ox);
        break;
      case 5:
        run_some<KW, STRIDE, 5>(d, rows, r, ox);
        break;
      case 4:
        run_some<KW, STRIDE, 4>(d, rows, r, ox);
        break;
      case 3:
        run_some<KW, STRIDE, 3>(d, rows, r, ox);
        break;
      case 2:
        run_some<KW, STRIDE, 2>(d, rows, r, ox);
        break;
      default:
        run_some<KW, STRIDE, 1>(d, rows, r, ox);
    }
  }
}

#if TY_VF == 16
// Where the register file holds the weights of three kernel rows, two output rows side by side use
// each source pixel that both meet.
enum { PAIR_COLUMNS = 7 };  // most output columns of a pair of runs

template <int STRIDE, int COUNT, bool EDGE>
TY_INLINE void sum_pair(const vf (&weight)[9], const element *const *rows, const BlockRow &r,
                        int64_t first, int64_t w, vf (&sums)[2][COUNT]) {
#pragma GCC unroll 8
  for (int p = 0; p < COUNT; ++p) sums[0][p] = sums[1][p] = r.bias;
#pragma GCC unroll 5
  for (int y = 0; y < STRIDE + 3; ++y) {
    if (!rows[y]) continue;
    const element *x = rows[y] + first * VF;
#pragma GCC unroll 16
    for (int q = 0; q < (COUNT - 1) * STRIDE + 3; ++q) {
      const element *at = x + q * VF;
      if (EDGE && q < 2 && first + q < 0) at = outside;
      if (EDGE && q > (COUNT - 1) * STRIDE && first + q >= w) at = outside;
      vf pixel = vload_element(at);
      asm("" : "+v"(pixel));
#pragma GCC unroll 3
      for (int j = 0; j < 3; ++j) {
        const int p = (q - j) / STRIDE;
        if (q < j || (q - j) % STRIDE != 0 || p >= COUNT) continue;
        if (y < 3) sums[0][p] = vfma(weight[y * 3 + j], pixel, sums[0][p]);
        if (y >= STRIDE) sums[1][p] = vfma(weight[(y - STRIDE) * 3 + j], pixel, sums[1][p]);
      }
    }
  }
}

template <int STRIDE, int COUNT>
TY_INLINE void run_pair(const vf (&weight)[9], const ConvShape &s, const element *const *rows,
                        const BlockRow &upper, const BlockRow &lower, int64_t ox) {
  const int64_t first = ox * STRIDE - s.left;
  vf sums[2][COUNT];
  if (at_edge(s, first, COUNT))
    sum_pair<STRIDE, COUNT, true>(weight, rows, upper, first, s.w, sums);
  else
    sum_pair<STRIDE, COUNT, false>(weight, rows, upper, first, s.w, sums);
  store_pixels<COUNT>(upper, ox, sums[0]);
  store_pixels<COUNT>(lower, ox, sums[1]);
}

// Pairs of output rows of a kernel of 3 x 3, of which `to` is the first.
template <int STRIDE>
TY_INLINE void run_depthwise_pairs(const DepthwisePlane &d, const BlockRow &to, int64_t begin,
                                   int64_t pairs) {
  const ConvShape &s = *d.shape;
  const int64_t line = s.ow * VF, runs = ceil_div(s.ow, PAIR_COLUMNS);
  const int64_t shortest = s.ow / runs, longer = s.ow % runs;
  vf weight[9];
  for (int i = 0; i < 9; ++i) weight[i] = vload(d.weight + i * VF);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const BlockRow upper = row_at(to, 2 * pair * line), lower = row_at(to, (2 * pair + 1) * line);
    const element *rows[STRIDE + 3];
    find_rows(d, (begin + 2 * pair) * STRIDE - s.top, 1, STRIDE + 3, rows);
    for (int64_t run = 0, ox = 0, length; run < runs; ++run, ox += length) {
      length = shortest + (run < longer);
      if (length == 7)
        run_pair<STRIDE, 7>(weight, s, rows, upper, lower, ox);
      else if (length == 6)
        run_pair<STRIDE, 6>(weight, s, rows, upper, lower, ox);
      else if (length == 5)
        run_pair<STRIDE, 5>(weight, s, rows, upper, lower, ox);
      else
        run_pair<STRIDE, 4>(weight, s, rows, upper, lower, ox);
    }
  }
}
#endif

// Output rows [begin, end), of which `to` is the first.
template <int KW, int STRIDE>
void run_depthwise(const DepthwisePlane &d, const BlockRow &to, int64_t begin, int64_t end) {
  const ConvShape &s = *d.shape;
  int64_t y = begin;
#if TY_VF == 16
  if (KW == 3 && s.kh == 3 && s.sh == STRIDE && s.dh == 1 && s.ow >= 4) {
    const int64_t pairs = (end - begin) / 2;
    run_depthwise_pairs<STRIDE>(d, to, begin, pairs);
    y += 2 * pairs;
  }
#endif
  for (; y < end; ++y) {
    const element *rows[DEPTHWISE_ROWS];
    find_rows(d, y * s.sh - s.top, s.dh, s.kh, rows);
    run_depthwise_row<KW, STRIDE>(d, rows, row_at(to, (y - begin) * s.ow * VF));
  }
}

typedef void (*RunDepthwise)(const DepthwisePlane &, const BlockRow &, int64_t, int64_t);

// The function for a kernel and its horizontal stride, or NULL where there is none.
inline RunDepthwise run_depthwise_of(const ConvShape &s) {
  if (s.kh > DEPTHWISE_ROWS || s.dw != 1 || s.sw > 2) return nullptr;
  // No window may begin before the padding that a kernel can reach over, or behind the last pixel.
  if (s.left >= s.kw || (s.ow - 1) * s.sw - s.left >= s.w) return nullptr;
  if (s.kw == 3) return s.sw == 1 ? run_depthwise<3, 1> : run_depthwise<3, 2>;
  if (s.kw == 5) return s.sw == 1 ? run_depthwise<5, 1> : run_depthwise<5, 2>;
  if (s.kw == 7 && s.sw == 1 && sizeof(element) < sizeof(float)) return run_depthwise<7, 1>;
  return nullptr;
}

}  // namespace
}  // namespace TY_ISA

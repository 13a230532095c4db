// Extents of a convolution of 8-bit images and the padded copy that it reads.
#pragma once

#include "int8.hpp"

namespace TY_ISA {

// conv2d_quantized with a weight in packed panels.
int q8_conv_packed(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                   const ty_attrs *attrs, void *workspace);

struct Q8ConvShape {
  int64_t n, c, h, w, o, oh, ow, kh, kw, sh, sw, dh, dw, top, left, bottom, right, groups;
};

// How tiles gather the terms of pixels that do not lie at equal distances, a chunk at a time.
struct Q8Gather {
  Q8ConvShape shape;
  const uint8_t *x;  // the first channel of the group
  uint8_t zero;      // what padding holds
  uint8_t *stage;    // one for each slot
};

// Pixels that are gathered at once: their terms stay in the second cache.
TY_INLINE int64_t q8_gathered(int64_t k4, int64_t pixels) {
  const int64_t fit = (512 << 10) / (q8_row_room(k4) + 1) / 32 * 32;
  return lesser(fit < 64 ? 64 : lesser(fit, 1024), round_up(pixels, 32));
}
TY_INLINE int64_t q8_stage_bytes(int64_t k4, int64_t pixels) {
  return round_up(q8_gathered(k4, pixels) * q8_row_room(k4) + 64, 64);
}

// Writes the terms of the pixels [begin, end) of all images, in the order of packed weights, to
// rows of `row_bytes`. 64 bytes behind the last row may be written.
void q8_gather(const Q8Gather &g, uint8_t *to, int64_t begin, int64_t end, int64_t row_bytes);

// The largest part of k4 rows that divides them and fits a tile.
TY_INLINE int64_t q8_even_step(int64_t k4) {
  int64_t steps = ceil_div(k4, 16);
  while (steps > 0 && k4 % steps != 0) ++steps;
  return steps == 0 ? 0 : k4 / steps;
}

namespace {

static inline Q8ConvShape q8_conv_shape(const ty_conv2d_quantized_attrs &a, const ty_tensor *inputs,
                                        const ty_tensor &y) {
  const int64_t *x = inputs[0].shape, *w = inputs[1].shape;
  const int64_t *stride = TY_INTS(&a, a.stride), *padding = TY_INTS(&a, a.padding);
  const int64_t *dilation = TY_INTS(&a, a.dilation);
  return {x[0],        x[1],       x[2],       x[3],       y.shape[1], y.shape[2],
          y.shape[3],  w[2],       w[3],       stride[0],  stride[1],  dilation[0],
          dilation[1], padding[0], padding[1], padding[2], padding[3], a.groups};
}

// Copies row y of an image, of which those beyond it are padding, into operands with padding that
// stands for zero on both sides.
template <typename T>
inline void q8_copy_row(T *to, const uint8_t *image, int64_t y, const Q8ConvShape &s,
                        int64_t zero_point, bool is_signed) {
  const int64_t channels = q8_channels(s.c), row = s.w * channels;
  const int64_t left = s.left * channels, right = s.right * channels;
  const T zero = static_cast<T>(q8_zero(T(), zero_point, is_signed));
  if (y < 0 || y >= s.h) return q8_fill(to, zero, left + row + right);
  q8_fill(to, zero, left);
  q8_convert(to + left, image + y * row, row, zero_point, is_signed);
  q8_fill(to + left + row, zero, right);
}

// Copies images into operands with padding around them that stands for zero.
template <typename T>
inline void q8_copy_padded(const ty_ctx *ctx, T *to, const uint8_t *from, const Q8ConvShape &s,
                           int64_t zero_point, bool is_signed) {
  const int64_t channels = q8_channels(s.c), h = s.h + s.top + s.bottom;
  const int64_t row = (s.w + s.left + s.right) * channels;
  const int64_t grain = even_grain(ctx, s.n * h, 1 + 32768 / (row + 1));
  ty_parallel(ctx, s.n * h, grain, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at)
      q8_copy_row(to + at * row, from + at / h * s.h * s.w * channels, at % h - s.top, s,
                  zero_point, is_signed);
  });
}

}  // namespace
}  // namespace TY_ISA

// Pooling of 8-bit images whose channels lie last.
#include "int8.hpp"

namespace TY_ISA {
namespace {

struct Window {
  int64_t y0, y1, x0, x1;
};

// Calls body(to, image, window, output pixel) for every window of every image, all channels.
template <typename WindowOf, typename Body>
TY_INLINE void pool(const ty_ctx *ctx, const ty_tensor &x, const ty_tensor &y,
                    const WindowOf &window_of, const Body &body) {
  const int64_t oh = y.shape[2], ow = y.shape[3], channels = q8_channels(x.shape[1]);
  const int64_t image = x.shape[2] * x.shape[3] * channels;
  const int64_t reads = x.shape[0] * image / (x.shape[0] * oh * ow + 1) + channels;
  ty_parallel(ctx, x.shape[0] * oh * ow, 1 + 32768 / (reads + 1),
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t at = begin; at < end; ++at)
                  body(static_cast<uint8_t *>(y.data) + at * channels,
                       static_cast<const uint8_t *>(x.data) + at / (oh * ow) * image,
                       window_of(at / ow % oh, at % ow));
              });
}

template <typename Attrs>
TY_INLINE Window clipped(const Attrs &a, const int64_t *x, int64_t oy, int64_t ox) {
  const int64_t *kernel = TY_INTS(&a, a.kernel), *stride = TY_INTS(&a, a.stride);
  const int64_t *padding = TY_INTS(&a, a.padding);
  const int64_t y0 = oy * stride[0] - padding[0], x0 = ox * stride[1] - padding[1];
  return {y0 < 0 ? 0 : y0, lesser(y0 + kernel[0], x[2]), x0 < 0 ? 0 : x0,
          lesser(x0 + kernel[1], x[3])};
}

// Vectors of bytes, from which the largest are taken channel by channel.
TY_INLINE __m128i larger(__m128i a, __m128i b, uint8_t) { return _mm_max_epu8(a, b); }
TY_INLINE __m128i larger(__m128i a, __m128i b, int8_t) { return _mm_max_epi8(a, b); }
TY_INLINE __m256i larger(__m256i a, __m256i b, uint8_t) { return _mm256_max_epu8(a, b); }
TY_INLINE __m256i larger(__m256i a, __m256i b, int8_t) { return _mm256_max_epi8(a, b); }
#if TY_VF == 16
TY_INLINE __m512i larger(__m512i a, __m512i b, uint8_t) { return _mm512_max_epu8(a, b); }
TY_INLINE __m512i larger(__m512i a, __m512i b, int8_t) { return _mm512_max_epi8(a, b); }
#endif

template <typename Bytes>
TY_INLINE Bytes load_bytes(const uint8_t *from) {
  Bytes found;
  __builtin_memcpy(&found, from, sizeof(Bytes));
  return found;
}

// The largest values of a window in channels [c, channels) as far as whole vectors go; returns the
// first channel behind them.
template <typename T, typename Bytes>
TY_INLINE int64_t largest_of(uint8_t *to, const uint8_t *first, Window w, int64_t row,
                             int64_t channels, int64_t c) {
  const int64_t width = sizeof(Bytes);
  for (; c + width <= channels; c += width) {
    Bytes found = load_bytes<Bytes>(first + c);
    for (int64_t i = 0; i < w.y1 - w.y0; ++i)
      for (int64_t j = 0; j < w.x1 - w.x0; ++j)
        found = larger(found, load_bytes<Bytes>(first + i * row + j * channels + c), T());
    __builtin_memcpy(to + c, &found, sizeof(Bytes));
  }
  return c;
}

// The largest values of a window, many channels after another, or those of a pixel of four.
template <typename T>
TY_INLINE void largest(uint8_t *to, const uint8_t *first, Window w, int64_t row, int64_t channels) {
  int64_t c = 0;
#if TY_VF == 16
  c = largest_of<T, __m512i>(to, first, w, row, channels, c);
#endif
  c = largest_of<T, __m256i>(to, first, w, row, channels, c);
  c = largest_of<T, __m128i>(to, first, w, row, channels, c);
  for (; c < channels; ++c) {
    T found = static_cast<T>(first[c]);
    for (int64_t i = 0; i < w.y1 - w.y0; ++i)
      for (int64_t j = 0; j < w.x1 - w.x0; ++j) {
        const T here = static_cast<T>(first[i * row + j * channels + c]);
        found = here > found ? here : found;
      }
    to[c] = static_cast<uint8_t>(found);
  }
}

template <typename T>
void max_pool_of(const ty_ctx *ctx, const ty_tensor &x, const ty_tensor &y,
                 const ty_max_pool2d_attrs &a) {
  const int64_t channels = q8_channels(x.shape[1]), row = x.shape[3] * channels;
  pool(
      ctx, x, y, [&](int64_t oy, int64_t ox) { return clipped(a, x.shape, oy, ox); },
      [&](uint8_t *to, const uint8_t *image, Window w) {
        largest<T>(to, image + w.y0 * row + w.x0 * channels, w, row, channels);
      });
}

int max_pool(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
             void *) {
  const auto &a = *reinterpret_cast<const ty_max_pool2d_attrs *>(attrs);
  if (inputs[0].dtype == TY_INT8)
    max_pool_of<int8_t>(ctx, inputs[0], outputs[0], a);
  else
    max_pool_of<uint8_t>(ctx, inputs[0], outputs[0], a);
  return 0;
}

// Averages of 16 channels after another; `whole` is the divisor, or 0 for the window's own size.
template <typename Attrs, typename WindowOf>
void average(const ty_ctx *ctx, const ty_tensor &x, const ty_tensor &y, const Attrs &a,
             int64_t whole, const WindowOf &window_of) {
  const int64_t channels = q8_channels(x.shape[1]), row = x.shape[3] * channels;
  const bool is_signed = x.dtype == TY_INT8;
  const float multiplier = static_cast<float>(a.multiplier);
  const int64_t zero = a.x_zero_point;
  const Q8Store form = q8_store_of(a);
  pool(ctx, x, y, window_of, [&](uint8_t *to, const uint8_t *image, Window w) {
    const int64_t inside = (w.y1 - w.y0) * (w.x1 - w.x0);
    const vf factor = vset1(multiplier / static_cast<float>(whole ? whole : inside));
    const vi shift = vi_set1(static_cast<int32_t>(inside * zero));
    for (int64_t c = 0; c < channels; c += 16) {
      Q8Lanes sums;
      for (int q = 0; q < Q8_PARTS; ++q) sums.part[q] = vi_set1(0);
      for (int64_t i = w.y0; i < w.y1; ++i)
        for (int64_t j = w.x0; j < w.x1; ++j) {
          const Q8Lanes more =
              q8_load16(image + i * row + j * channels + c, channels - c, is_signed);
          for (int q = 0; q < Q8_PARTS; ++q) sums.part[q] = vi_add(sums.part[q], more.part[q]);
        }
      for (int q = 0; q < Q8_PARTS; ++q)
        sums.part[q] = q8_finish(vmul(vi_to_vf(vi_sub(sums.part[q], shift)), factor), form);
      q8_store16(to + c, sums, channels - c);
    }
  });
}

int avg_pool(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
             void *) {
  const auto &a = *reinterpret_cast<const ty_avg_pool2d_quantized_attrs *>(attrs);
  const int64_t *kernel = TY_INTS(&a, a.kernel), *shape = inputs[0].shape;
  average(ctx, inputs[0], outputs[0], a, a.count_include_pad ? kernel[0] * kernel[1] : 0,
          [&](int64_t oy, int64_t ox) { return clipped(a, shape, oy, ox); });
  return 0;
}

int adaptive_avg_pool(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                      const ty_attrs *attrs, void *) {
  const auto &a = *reinterpret_cast<const ty_adaptive_avg_pool2d_quantized_attrs *>(attrs);
  const int64_t h = inputs[0].shape[2], w = inputs[0].shape[3];
  const int64_t oh = outputs[0].shape[2], ow = outputs[0].shape[3];
  average(ctx, inputs[0], outputs[0], a, 0, [&](int64_t oy, int64_t ox) {
    return Window{oy * h / oh, ceil_div((oy + 1) * h, oh), ox * w / ow, ceil_div((ox + 1) * w, ow)};
  });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_pool, TY_KERNEL(max_pool, "max_pool2d_q8", "image"),
                  TY_KERNEL(avg_pool, "avg_pool2d_quantized_q8", "image"),
                  TY_KERNEL(adaptive_avg_pool, "adaptive_avg_pool2d_quantized_q8", "image"))

// conv2d_quantized of images of up to three channels: a copy without the padding between pixels
// makes each row of a kernel one run of terms, filled up to fours once and not at every tap.
#include "int8_conv.hpp"

namespace TY_ISA {
namespace {

// Writes pixels of `c` operands from pixels of four bytes.
TY_INLINE void narrow_pixels(Operand *to, const uint8_t *from, int64_t c, int64_t pixels,
                             int64_t zero_point, bool is_signed) {
  alignas(64) uint8_t bytes[16];
  alignas(64) Operand wide[16];
  int64_t at = 0;
  // Four pixels at a time, as long as what is written behind them is written again.
  alignas(16) int8_t order[16];
  for (int64_t i = 0; i < 16; ++i)
    order[i] = static_cast<int8_t>(i < 4 * c ? i / c * 4 + i % c : 12);
  const __m128i shuffle = _mm_load_si128(reinterpret_cast<const __m128i *>(order));
  for (; (pixels - at) * c >= 16; at += 4) {
    const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + at * 4));
    _mm_store_si128(reinterpret_cast<__m128i *>(bytes), _mm_shuffle_epi8(four, shuffle));
    q8_convert(to + at * c, bytes, 16, zero_point, is_signed);
  }
  for (; at < pixels; ++at) {
    q8_convert(wide, from + at * 4, 4, zero_point, is_signed);
    for (int64_t i = 0; i < c; ++i) to[at * c + i] = wide[i];
  }
}

// Copies the image with padding around it that stands for zero.
void copy_rows(const ty_ctx *ctx, Operand *to, const uint8_t *from, const Q8ConvShape &s,
               int64_t zero_point, bool is_signed) {
  const int64_t h = s.h + s.top + s.bottom, row = (s.w + s.left + s.right) * s.c;
  const Operand zero = static_cast<Operand>(q8_zero(Operand(), zero_point, is_signed));
  ty_parallel(ctx, s.n * h, 1 + 16384 / (row + 1), [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t y = at % h - s.top;
      Operand *target = to + at * row;
      if (y < 0 || y >= s.h) {
        q8_fill(target, zero, row);
        continue;
      }
      q8_fill(target, zero, s.left * s.c);
      narrow_pixels(target + s.left * s.c, from + (at / h * s.h + y) * s.w * 4, s.c, s.w,
                    zero_point, is_signed);
      q8_fill(target + (s.left + s.w) * s.c, zero, s.right * s.c);
    }
  });
}

int run(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
        void *workspace) {
  const auto &a = *reinterpret_cast<const ty_conv2d_quantized_attrs *>(attrs);
  const Q8ConvShape s = q8_conv_shape(a, inputs, outputs[0]);
  if (s.n * s.o * s.oh * s.ow == 0) return 0;
  const bool is_signed = inputs[0].dtype == TY_INT8;
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  Q8Run *runs = static_cast<Q8Run *>(scratch.take(s.kh * 16));
  Q8Columns columns = {static_cast<int32_t *>(scratch.take(q8_columns_bytes(s.o))), nullptr,
                       static_cast<float *>(scratch.take(q8_columns_bytes(s.o)))};
  q8_fill_columns(columns, {q8_bias_of(a, inputs), TY_FLOATS(&a, a.multipliers), nullptr,
                            a.multipliers.count, 0, s.o, 0});
  const int64_t height = s.h + s.top + s.bottom, row = (s.w + s.left + s.right) * s.c;
  const int64_t fours = ceil_div(s.kw * s.c, 4);
  Operand *copy = static_cast<Operand *>(
      scratch.take((s.n * height * row + 64) * static_cast<int64_t>(sizeof(Operand))));
  copy_rows(ctx, copy, static_cast<const uint8_t *>(inputs[0].data), s, a.x_zero_point, is_signed);
  for (int64_t i = 0; i < s.kh; ++i) runs[i] = {i * s.dh * row, fours};
  Q8Plan p = {};
  p.x = copy;
  p.pixel = s.sw * s.c;
  p.row = s.sh * row;
  p.image = height * row;
  p.n = s.n;
  p.oh = s.oh;
  p.ow = s.ow;
  p.runs = runs;
  p.n_runs = s.kh;
  p.k4 = s.kh * fours;
  p.o = s.o;
  p.weight = static_cast<const int8_t *>(inputs[1].data);
  q8_fold_zero(columns.bias, nullptr, p.weight, s.o, p.k4, 0,
               q8_zero(Operand(), a.x_zero_point, is_signed));
  p.bias = columns.bias;
  p.multiplier = columns.multiplier;
  p.store = q8_store_of(a);
  p.y = static_cast<uint8_t *>(outputs[0].data);
  p.y_pixel = p.o_room = q8_channels(s.o);
  p.residual = q8_residual_of(a, inputs);
  q8_run(ctx, p);
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_conv_rows, TY_KERNEL(run, "conv2d_q8", "rows"))

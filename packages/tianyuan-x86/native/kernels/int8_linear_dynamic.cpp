// linear_dynamic: floats become bytes that their range fills, are multiplied by weights of int8,
// and the sums become floats again while they are in registers.
#include "int8.hpp"

namespace TY_ISA {
namespace {

enum { GRAIN = 32768 };

// The least and the largest value, 0 included, and whether all are finite.
struct Range {
  float low, high;
  bool finite;
};

Range range_of(const ty_ctx *ctx, const float *x, int64_t size, Range *found) {
  for (int32_t i = 0; i < ctx->threads; ++i) found[i] = {0.0f, 0.0f, true};
  ty_parallel(ctx, size, GRAIN, [&](int64_t begin, int64_t end, int32_t slot) {
    // The difference of a value and itself is 0, or NaN for what is not finite.
    vf low[2] = {vzero(), vzero()}, high[2] = {vzero(), vzero()}, odd[2] = {vzero(), vzero()};
    const auto see = [&](int i, vf v) {
      low[i] = vmin_fast(v, low[i]);
      high[i] = vmax_fast(v, high[i]);
      odd[i] = vor(odd[i], vsub(v, v));
    };
    int64_t at = begin;
    for (; at + 2 * TY_VF <= end; at += 2 * TY_VF)
      for (int i = 0; i < 2; ++i) see(i, vload(x + at + i * TY_VF));
    for (; at < end; at += TY_VF) see(0, vload_tail(x + at, vtail_of(lesser(end - at, TY_VF))));
    Range &mine = found[slot];
    const float least = vhmin(vmin_fast(low[0], low[1]));
    const float most = vhmax(vmax_fast(high[0], high[1]));
    mine.low = least < mine.low ? least : mine.low;
    mine.high = most > mine.high ? most : mine.high;
    mine.finite = mine.finite && vm_bits(visnan(vor(odd[0], odd[1]))) == 0;
  });
  Range all = found[0];
  for (int32_t i = 1; i < ctx->threads; ++i) {
    all.low = found[i].low < all.low ? found[i].low : all.low;
    all.high = found[i].high > all.high ? found[i].high : all.high;
    all.finite = all.finite && found[i].finite;
  }
  return all;
}

// Stores `count` rounded quotients as operands: with the zero point, or as distances to it.
#if defined(__AVX512VNNI__)
TY_INLINE void store_operands(uint8_t *to, vi whole, int32_t zero, int64_t count) {
  _mm512_mask_cvtepi32_storeu_epi8(to, vtail_of(count), vi_add(whole, vi_set1(zero)));
}
#else
TY_INLINE void store_operands(int16_t *to, vi whole, int32_t, int64_t count) {
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  if (count >= TY_VF) {
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), words);
  } else {
    alignas(16) int16_t some[TY_VF];
    _mm_store_si128(reinterpret_cast<__m128i *>(some), words);
    __builtin_memcpy(to, some, static_cast<size_t>(2 * count));
  }
}
#endif

// Divides rows by the scale into rows of operands, filled up with zeros.
void quantise_rows(const ty_ctx *ctx, Operand *to, const float *x, int64_t rows, int64_t k,
                   float scale, int32_t zero) {
  const int64_t stride = q8_row_room(ceil_div(k, 4));
  const vf divisor = vset1(scale), lower = vset1(static_cast<float>(-zero));
  const vf upper = vset1(static_cast<float>(255 - zero));
  ty_parallel(ctx, rows, 1 + GRAIN / (k + 1), [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t row = begin; row < end; ++row) {
      Operand *target = to + row * stride;
      for (int64_t i = 0; i < k; i += TY_VF) {
        const int64_t some = lesser(k - i, TY_VF);
        const float *from = x + row * k + i;
        const vf t = vdiv(some == TY_VF ? vload(from) : vload_tail(from, vtail_of(some)), divisor);
        store_operands(target + i, vf_to_vi(vmin_fast(vmax_fast(t, lower), upper)), zero, some);
      }
      for (int64_t i = k; i < stride; ++i) target[i] = 0;
    }
  });
}

int run(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
        void *workspace, bool packed) {
  const auto &a = *reinterpret_cast<const ty_linear_dynamic_attrs *>(attrs);
  const int64_t size = ty_count(outputs[0]);
  if (size == 0) return 0;
  const int64_t n = inputs[1].shape[0], k = inputs[1].shape[1], rows = size / n;
  const int64_t k4 = ceil_div(k, 4);
  const float *x = static_cast<const float *>(inputs[0].data);
  const float *scales = static_cast<const float *>(inputs[2].data);
  float *y = static_cast<float *>(outputs[0].data);
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  Range *ranges = static_cast<Range *>(scratch.take(64 * ctx->threads));
  const Range range = range_of(ctx, x, rows * k, ranges);
  const float least = 1.17549435e-38f, quotient = (range.high - range.low) / 255.0f;
  const float scale = quotient > least ? quotient : least;
  if (!range.finite || __builtin_isinf(scale)) {
    for (int64_t i = 0; i < size; ++i) y[i] = __builtin_nanf("");
    return 0;
  }
  const float place = __builtin_rintf(-range.low / scale);
  const int32_t zero = place < 255.0f ? static_cast<int32_t>(place) : 255;
  int32_t *bias = static_cast<int32_t *>(scratch.take(q8_columns_bytes(n)));
  float *multiplier = static_cast<float *>(scratch.take(q8_columns_bytes(n)));
  float *add = static_cast<float *>(scratch.take(q8_columns_bytes(n)));
  const float *given = a.has_bias ? static_cast<const float *>(inputs[3].data) : nullptr;
  for (int64_t o = 0; o < n + 16; ++o) {
    bias[o] = 0;
    multiplier[o] = o < n ? scales[o] * scale : 0.0f;
    add[o] = o < n && given != nullptr ? given[o] : 0.0f;
  }
  Operand *operands =
      static_cast<Operand *>(scratch.take(rows * q8_row_room(k4) * sizeof(Operand)));
  quantise_rows(ctx, operands, x, rows, k, scale, zero);
  const int8_t *weight = static_cast<const int8_t *>(inputs[1].data);
  if (!packed) {
    int8_t *own = static_cast<int8_t *>(scratch.take(q8_packed_bytes(n, k4)));
    q8_pack(ctx, own, weight, {n, k, 1, k, 1, false});
    weight = own;
  }
  q8_fold_zero(bias, nullptr, weight, n, k4, k, q8_zero(Operand(), zero, false));
  const Q8Run terms = {0, q8_row_room(k4) / 4};
  Q8Plan p = {};
  p.x = operands;
  p.pixel = q8_row_room(k4);
  p.row = p.image = rows * p.pixel;
  p.n = p.oh = p.n_runs = 1;
  p.ow = rows;
  p.runs = &terms;
  p.weight = weight;
  p.k4 = k4;
  p.o = p.o_room = p.y_pixel = n;
  p.bias = bias;
  p.multiplier = multiplier;
  p.floats = y;
  p.add = given != nullptr ? add : nullptr;
  q8_run(ctx, p);
  return 0;
}

int run_packed(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
               const ty_attrs *attrs, void *workspace) {
  return run(ctx, inputs, outputs, attrs, workspace, true);
}

int run_unpacked(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                 const ty_attrs *attrs, void *workspace) {
  return run(ctx, inputs, outputs, attrs, workspace, false);
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_linear_dynamic, TY_KERNEL(run_packed, "linear_dynamic_q8", "packed"),
                  TY_KERNEL(run_unpacked, "linear_dynamic_q8", "unpacked"))

// quantize, dequantize, requantize, add_quantized and the joining of channels, on plain values and
// on channels-last images, whose padding is computed along.
#include "int8_lookup.hpp"

namespace TY_ISA {
namespace {

int64_t elements(const ty_tensor &tensor, bool image) {
  if (!image) return ty_count(tensor);
  const int64_t *s = tensor.shape;
  return s[0] * s[2] * s[3] * q8_channels(s[1]);
}

enum { BYTES = 4 * TY_VF };

TY_INLINE bool any_above(vf x, vf limit) {
#if TY_VF == 16
  return vgt(x, limit) != 0;
#else
  return _mm256_movemask_ps(vgt(x, limit)) != 0;
#endif
}

// Quantises whole vectors of bytes. A product with the reciprocal rounds as the quotient does
// unless it lies next to half an integer, or so far out that both are clamped; the quotient is
// taken then. Threads take the same parts of all planes.
void quantize_vectors(const ty_ctx *ctx, uint8_t *y, const float *x, int64_t planes,
                      int64_t vectors, float scale, const Q8Narrow &narrow) {
  const vf inverse = vset1(1.0f / scale), divisor = vset1(scale), most = vset1(1e6f);
  const vf limit = vset1(0.5f - 1.0f / 4096);
#if TY_VF == 16
  const vi order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#else
  const vi order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
#endif
  const auto part = [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * BYTES; at < end * BYTES; at += BYTES) {
      vf t[4], worst = vset1(0.0f);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        t[i] = vmul(vload(x + at + i * TY_VF), inverse);
        worst = vmax_fast(vabs(vsub(t[i], vround(t[i]))), worst);
      }
      if (any_above(worst, limit))
        for (int i = 0; i < 4; ++i) t[i] = vdiv(vload(x + at + i * TY_VF), divisor);
      vi whole[4];
      // What is too large or no number becomes the least integer, which is right for the latter.
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) whole[i] = vf_to_vi(vmin_fast(most, t[i]));
      const vi bytes = q8_narrowed(whole, narrow);
#if TY_VF == 16
      _mm512_storeu_si512(y + at, _mm512_permutexvar_epi32(order, bytes));
#else
      _mm256_storeu_si256(reinterpret_cast<__m256i *>(y + at),
                          _mm256_permutevar8x32_epi32(bytes, order));
#endif
    }
  };
  ty_parallel(ctx, vectors, GRAIN / BYTES / planes, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t plane = 0; plane < planes; ++plane)
      part(plane * vectors + begin, plane * vectors + end);
  });
}

// Planes that lie one behind the other and are laid side by side later: those of a plain image of
// few channels; else all is one.
int64_t planes_of(const ty_tensor &x) {
  if (x.ndim != 4 || x.shape[2] * x.shape[3] % BYTES != 0) return 1;
  const int64_t planes = x.shape[0] * x.shape[1];
  return planes <= 4 ? greater(planes, 1) : 1;
}

int quantize(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
             void *) {
  const auto &a = *reinterpret_cast<const ty_quantize_attrs *>(attrs);
  const float *x = static_cast<const float *>(inputs[0].data);
  uint8_t *y = static_cast<uint8_t *>(outputs[0].data);
  const bool is_signed = outputs[0].dtype == TY_INT8;
  const int32_t zero = static_cast<int32_t>(TY_INTS(&a, a.zero_points)[0]);
  const int32_t least = is_signed ? -128 : 0;
  const Q8Store form = {static_cast<float>(least - zero), static_cast<float>(least + 255 - zero),
                        zero};
  const float factor = static_cast<float>(TY_FLOATS(&a, a.scales)[0]);
  const vf scale = vset1(factor);
  const int64_t size = ty_count(inputs[0]);
  int64_t done = 0;
  if (factor > 1e-30f && factor < 1e30f) {
    done = size / BYTES * BYTES;
    const int64_t planes = planes_of(inputs[0]);
    quantize_vectors(ctx, y, x, planes, done / BYTES / planes, factor, q8_narrow(form, true));
  }
  by16(ctx, size - done, [&](int64_t at, int64_t count) {
    store(y + done + at, divided(x + done + at, count, scale), count, form);
  });
  return 0;
}

int dequantize(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
               const ty_attrs *attrs, void *) {
  const auto &a = *reinterpret_cast<const ty_dequantize_attrs *>(attrs);
  const uint8_t *x = static_cast<const uint8_t *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  const bool is_signed = inputs[0].dtype == TY_INT8;
  const int32_t zero = static_cast<int32_t>(TY_INTS(&a, a.zero_points)[0]);
  const float scale = static_cast<float>(TY_FLOATS(&a, a.scales)[0]);
  by16(ctx, ty_count(inputs[0]), [&](int64_t at, int64_t count) {
    store_floats(y + at, scaled(x + at, count, is_signed, zero, scale), count);
  });
  return 0;
}

// One operand of a sum, its bytes made unsigned.
struct Addend {
  const uint8_t *data;
  vi flip;
  vf zero_point, factor;  // the zero point lies 2^23 higher
};

TY_INLINE Addend addend_of(const uint8_t *data, bool is_signed, int32_t zero, float factor) {
  return {data, vi_set1(is_signed ? static_cast<int32_t>(0x80808080u) : 0),
          vset1(static_cast<float>((1 << 23) + zero + (is_signed ? 128 : 0))), vset1(factor)};
}

#if TY_VF == 16
#define Q8_UNPACK(half, bits, a, b) _mm512_unpack##half##_epi##bits((a), (b))
#else
#define Q8_UNPACK(half, bits, a, b) _mm256_unpack##half##_epi##bits((a), (b))
#endif

// Scales a vector of bytes. A byte under the upper half of 2^23 is that number and the byte,
// exactly.
TY_INLINE void scale_bytes(const Addend &a, vi stored, vf (&to)[4]) {
  const vi none = vi_set1(0), upper = vi_set1(0x4b004b00), bytes = vi_xor(stored, a.flip);
  const vi low = Q8_UNPACK(lo, 8, bytes, none), high = Q8_UNPACK(hi, 8, bytes, none);
  const vi wide[4] = {Q8_UNPACK(lo, 16, low, upper), Q8_UNPACK(hi, 16, low, upper),
                      Q8_UNPACK(lo, 16, high, upper), Q8_UNPACK(hi, 16, high, upper)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) to[i] = vmul(vsub(vi_as_vf(wide[i]), a.zero_point), a.factor);
}

TY_INLINE vi load_bytes(const uint8_t *from) {
  return vi_load(static_cast<const int32_t *>(static_cast<const void *>(from)));
}

// Another scale for bytes: by a table, or where that takes many shuffles by computing.
struct Rescale {
  Q8Table table;
  Addend form;
  Q8Narrow narrow;
  bool computes;
};

TY_INLINE void fill_rescale(Rescale *r, bool is_signed, int64_t zero, double factor,
                            const Q8Store &form) {
  const float multiplier = static_cast<float>(factor);
  q8_fill_table(&r->table, is_signed, static_cast<int32_t>(zero), multiplier, form);
  r->form = addend_of(nullptr, is_signed, static_cast<int32_t>(zero), multiplier);
  r->narrow = q8_narrow(form, true);
  r->computes = TY_VF == 8 && multiplier < 1e6f;
}

#if TY_VF == 8
TY_INLINE vi rescaled(const Rescale &r, vi bytes) {
  vf t[4];
  scale_bytes(r.form, bytes, t);
  const vi whole[4] = {vf_to_vi(t[0]), vf_to_vi(t[1]), vf_to_vi(t[2]), vf_to_vi(t[3])};
  return q8_narrowed(whole, r.narrow);
}

// The last vector overlaps the one before it.
TY_INLINE void compute_rescaled(const Rescale &r, uint8_t *to, const uint8_t *from, int64_t count) {
  if (count >= 32) {
    for (int64_t at = 0; at < count; at += 32) {
      const int64_t here = lesser(at, count - 32);
      vi_store(static_cast<int32_t *>(static_cast<void *>(to + here)),
               rescaled(r, load_bytes(from + here)));
    }
    return;
  }
  if (count < 16) {
    q8_look_up(r.table, to, from, count);
    return;
  }
  for (int64_t at = 0; at < count; at += 16) {
    const int64_t here = lesser(at, count - 16);
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + here));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to + here),
                     _mm256_castsi256_si128(rescaled(r, _mm256_castsi128_si256(bytes))));
  }
}
#else
TY_INLINE void compute_rescaled(const Rescale &, uint8_t *, const uint8_t *, int64_t) {}
#endif

TY_INLINE void rescale(const Rescale &r, uint8_t *to, const uint8_t *from, int64_t count) {
  if (r.computes)
    compute_rescaled(r, to, from, count);
  else
    q8_look_up(r.table, to, from, count);
}

int run_requantize(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                   const ty_attrs *attrs, bool image) {
  const auto &a = *reinterpret_cast<const ty_requantize_attrs *>(attrs);
  const uint8_t *x = static_cast<const uint8_t *>(inputs[0].data);
  uint8_t *y = static_cast<uint8_t *>(outputs[0].data);
  Rescale r;
  fill_rescale(&r, inputs[0].dtype == TY_INT8, a.x_zero_point, a.multiplier, q8_store_of(a));
  ty_parallel(ctx, elements(inputs[0], image), 4 * GRAIN, [&](int64_t begin, int64_t end, int32_t) {
    rescale(r, y + begin, x + begin, end - begin);
  });
  return 0;
}

// Adds whole vectors of bytes, whose results are int32 before they are clamped.
void add_vectors(const ty_ctx *ctx, uint8_t *y, const Addend &left, const Addend &right,
                 int64_t vectors, const Q8Narrow &narrow) {
  ty_parallel(ctx, vectors, GRAIN / BYTES, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin * BYTES; at < end * BYTES; at += BYTES) {
      _mm_prefetch(reinterpret_cast<const char *>(left.data + at + 1024), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char *>(right.data + at + 1024), _MM_HINT_T0);
      vf a[4], b[4];
      scale_bytes(left, load_bytes(left.data + at), a);
      scale_bytes(right, load_bytes(right.data + at), b);
      vi whole[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) whole[i] = vf_to_vi(vadd(a[i], b[i]));
      vi_store(static_cast<int32_t *>(static_cast<void *>(y + at)), q8_narrowed(whole, narrow));
    }
  });
}

int run_add(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
            bool image) {
  const auto &a = *reinterpret_cast<const ty_add_quantized_attrs *>(attrs);
  const uint8_t *left = static_cast<const uint8_t *>(inputs[0].data);
  const uint8_t *right = static_cast<const uint8_t *>(inputs[1].data);
  uint8_t *y = static_cast<uint8_t *>(outputs[0].data);
  const bool left_signed = inputs[0].dtype == TY_INT8, right_signed = inputs[1].dtype == TY_INT8;
  const int32_t left_zero = static_cast<int32_t>(a.a_zero_point);
  const int32_t right_zero = static_cast<int32_t>(a.b_zero_point);
  const float left_factor = static_cast<float>(a.a_multiplier);
  const float right_factor = static_cast<float>(a.b_multiplier);
  const Q8Store form = q8_store_of(a);
  const int64_t size = elements(outputs[0], image);
  int64_t done = 0;
  if (left_factor < 1e6f && right_factor < 1e6f) {
    done = size / BYTES * BYTES;
    add_vectors(ctx, y, addend_of(left, left_signed, left_zero, left_factor),
                addend_of(right, right_signed, right_zero, right_factor), size / BYTES,
                q8_narrow(form, true));
  }
  left += done;
  right += done;
  y += done;
  by16(ctx, size - done, [&](int64_t at, int64_t count) {
    Scaled t = scaled(left + at, count, left_signed, left_zero, left_factor);
    const Scaled other = scaled(right + at, count, right_signed, right_zero, right_factor);
    for (int i = 0; i < Q8_PARTS; ++i) t.part[i] = vadd(t.part[i], other.part[i]);
    store(y + at, t, count, form);
  });
  return 0;
}

// Channels of images one behind the other: move(to, from) for those of each pixel of an input,
// whose output lies `before` bytes into the pixel.
template <typename Move>
TY_INLINE void join(const ty_ctx *ctx, const ty_tensor &input, const ty_tensor &output,
                    int64_t before, const Move &move) {
  const int64_t *s = output.shape, pixels = s[0] * s[2] * s[3], row = q8_channels(s[1]);
  const int64_t pixel = q8_channels(input.shape[1]);
  const uint8_t *from = static_cast<const uint8_t *>(input.data);
  uint8_t *to = static_cast<uint8_t *>(output.data) + before;
  ty_parallel(ctx, pixels, 1 + GRAIN / row, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at) move(to + at * row, from + at * pixel);
  });
}

int concat_quantized_image(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                           const ty_attrs *attrs, void *) {
  const auto &a = *reinterpret_cast<const ty_concat_quantized_attrs *>(attrs);
  const int64_t *zeros = TY_INTS(&a, a.x_zero_points);
  const double *factors = TY_FLOATS(&a, a.multipliers);
  const Q8Store form = q8_store_of(a);
  int64_t before = 0;
  for (int32_t i = 0; i < attrs->n_inputs; ++i) {
    const int64_t channels = inputs[i].shape[1];
    Rescale r;
    fill_rescale(&r, inputs[i].dtype == TY_INT8, zeros[i], factors[i], form);
    join(ctx, inputs[i], outputs[0], before,
         [&](uint8_t *to, const uint8_t *from) { rescale(r, to, from, channels); });
    before += channels;
  }
  return 0;
}

int concat_image(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                 const ty_attrs *attrs, void *) {
  int64_t before = 0;
  for (int32_t i = 0; i < attrs->n_inputs; ++i) {
    const int64_t channels = inputs[i].shape[1];
    join(ctx, inputs[i], outputs[0], before, [&](uint8_t *to, const uint8_t *from) {
      __builtin_memcpy(to, from, static_cast<size_t>(channels));
    });
    before += channels;
  }
  return 0;
}

int concat_quantized_plain(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                           const ty_attrs *attrs, void *) {
  const auto &a = *reinterpret_cast<const ty_concat_quantized_attrs *>(attrs);
  const int64_t *zeros = TY_INTS(&a, a.x_zero_points);
  const double *factors = TY_FLOATS(&a, a.multipliers);
  const Q8Store form = q8_store_of(a);
  const int64_t *s = outputs[0].shape;
  int64_t outer = 1, inner = 1, before = 0;
  for (int64_t i = 0; i < a.axis; ++i) outer *= s[i];
  for (int64_t i = a.axis + 1; i < outputs[0].ndim; ++i) inner *= s[i];
  const int64_t row = s[a.axis] * inner;
  for (int32_t i = 0; i < attrs->n_inputs; ++i) {
    const int64_t some = inputs[i].shape[a.axis] * inner;
    const uint8_t *from = static_cast<const uint8_t *>(inputs[i].data);
    uint8_t *to = static_cast<uint8_t *>(outputs[0].data) + before;
    Rescale r;
    fill_rescale(&r, inputs[i].dtype == TY_INT8, zeros[i], factors[i], form);
    ty_parallel(ctx, outer, 1 + 4 * GRAIN / (some + 1), [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t at = begin; at < end; ++at) rescale(r, to + at * row, from + at * some, some);
    });
    before += some;
  }
  return 0;
}

#define Q8_PAIR(name, run)                                                         \
  int name##_plain(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, \
                   const ty_attrs *attrs, void *) {                                \
    return run(ctx, inputs, outputs, attrs, false);                                \
  }                                                                                \
  int name##_image(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, \
                   const ty_attrs *attrs, void *) {                                \
    return run(ctx, inputs, outputs, attrs, true);                                 \
  }
Q8_PAIR(requantize, run_requantize)
Q8_PAIR(add, run_add)

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_elementwise, TY_KERNEL(quantize, "quantize_q8", "flat"),
                  TY_KERNEL(dequantize, "dequantize_q8", "flat"),
                  TY_KERNEL(requantize_plain, "requantize_q8", "flat"),
                  TY_KERNEL(requantize_image, "requantize_q8", "image"),
                  TY_KERNEL(add_plain, "add_q8", "flat"), TY_KERNEL(add_image, "add_q8", "image"),
                  TY_KERNEL(concat_quantized_plain, "concat_quantized_q8", "plain"),
                  TY_KERNEL(concat_quantized_image, "concat_quantized_q8", "image"),
                  TY_KERNEL(concat_image, "concat_q8", "image"))

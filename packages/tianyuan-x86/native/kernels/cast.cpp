// cast between every pair of dtypes, with numpy's meaning of out-of-range values where C has none.
#include <string.h>

#include "kernel.hpp"
#include "simd.hpp"

namespace TY_ISA {
namespace {

static constexpr int64_t CAST_GRAIN = 16384;

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
struct Truth {
  uint8_t value;
};

TY_INLINE float widen(Half x) { return _cvtsh_ss(x.bits); }
TY_INLINE float widen(Brain x) {
  const uint32_t bits = (uint32_t)x.bits << 16;
  float y;
  memcpy(&y, &bits, sizeof y);
  return y;
}
TY_INLINE uint8_t widen(Truth x) { return x.value; }
template <class T>
TY_INLINE T widen(T x) {
  return x;
}

TY_INLINE Half to_half(float x) { return {(uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)}; }
TY_INLINE Brain to_brain(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (x != x) return {(uint16_t)((bits >> 16) | 0x40)};
  return {(uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

// From a widened value into To. A float that fits no integer converts as x86 does, which is what
// numpy gives too.
template <class To, class From>
struct Convert {
  static inline __attribute__((always_inline)) To of(From x) { return (To)x; }
};
template <class From>
struct Convert<Half, From> {
  static inline __attribute__((always_inline)) Half of(From x) { return to_half((float)x); }
};
template <class From>
struct Convert<Brain, From> {
  static inline __attribute__((always_inline)) Brain of(From x) { return to_brain((float)x); }
};
template <class From>
struct Convert<Truth, From> {
  static inline __attribute__((always_inline)) Truth of(From x) {
    return {(uint8_t)(x != From(0))};
  }
};
// Narrow integers take the low bits of a wide conversion, as numpy does on x86.
#define TY_NARROW(To, From, Via)                                                      \
  template <>                                                                         \
  struct Convert<To, From> {                                                          \
    static inline __attribute__((always_inline)) To of(From x) { return (To)(Via)x; } \
  };
TY_NARROW(int8_t, float, int32_t)
TY_NARROW(int16_t, float, int32_t)
TY_NARROW(uint8_t, float, int32_t)
TY_NARROW(uint16_t, float, int32_t)
TY_NARROW(uint32_t, float, int64_t)
TY_NARROW(int8_t, double, int32_t)
TY_NARROW(int16_t, double, int32_t)
TY_NARROW(uint8_t, double, int32_t)
TY_NARROW(uint16_t, double, int32_t)
TY_NARROW(uint32_t, double, int64_t)

template <class From, class To>
void cast_piece(const void *from, void *to, int64_t begin, int64_t end) {
  const From *x = static_cast<const From *>(from);
  To *y = static_cast<To *>(to);
  typedef decltype(widen(From())) Wide;
  for (int64_t i = begin; i < end; ++i) y[i] = Convert<To, Wide>::of(widen(x[i]));
}

typedef void (*Piece)(const void *from, void *to, int64_t begin, int64_t end);

void half_to_float(const void *from, void *to, int64_t begin, int64_t end) {
  const uint16_t *x = static_cast<const uint16_t *>(from);
  float *y = static_cast<float *>(to);
  for (; begin + VF <= end; begin += VF) vstore(y + begin, vload_f16(x + begin));
  cast_piece<Half, float>(from, to, begin, end);
}

void float_to_half(const void *from, void *to, int64_t begin, int64_t end) {
  const float *x = static_cast<const float *>(from);
  uint16_t *y = static_cast<uint16_t *>(to);
  for (; begin + VF <= end; begin += VF) vstore_f16(y + begin, vload(x + begin));
  cast_piece<float, Half>(from, to, begin, end);
}

void float_to_brain(const void *from, void *to, int64_t begin, int64_t end) {
  const float *x = static_cast<const float *>(from);
  uint16_t *y = static_cast<uint16_t *>(to);
  for (; begin + VF <= end; begin += VF) vstore_bf16(y + begin, vload(x + begin));
  cast_piece<float, Brain>(from, to, begin, end);
}

template <class From>
Piece piece_from(int64_t to) {
  switch (to) {
    case TY_BOOL:
      return cast_piece<From, Truth>;
    case TY_INT8:
      return cast_piece<From, int8_t>;
    case TY_INT16:
      return cast_piece<From, int16_t>;
    case TY_INT32:
      return cast_piece<From, int32_t>;
    case TY_INT64:
      return cast_piece<From, int64_t>;
    case TY_UINT8:
      return cast_piece<From, uint8_t>;
    case TY_UINT16:
      return cast_piece<From, uint16_t>;
    case TY_UINT32:
      return cast_piece<From, uint32_t>;
    case TY_FLOAT16:
      return cast_piece<From, Half>;
    case TY_BFLOAT16:
      return cast_piece<From, Brain>;
    case TY_FLOAT32:
      return cast_piece<From, float>;
    case TY_FLOAT64:
      return cast_piece<From, double>;
    default:
      return nullptr;
  }
}

Piece piece_of(int64_t from, int64_t to) {
  switch (from) {
    case TY_BOOL:
      return piece_from<Truth>(to);
    case TY_INT8:
      return piece_from<int8_t>(to);
    case TY_INT16:
      return piece_from<int16_t>(to);
    case TY_INT32:
      return piece_from<int32_t>(to);
    case TY_INT64:
      return piece_from<int64_t>(to);
    case TY_UINT8:
      return piece_from<uint8_t>(to);
    case TY_UINT16:
      return piece_from<uint16_t>(to);
    case TY_UINT32:
      return piece_from<uint32_t>(to);
    case TY_FLOAT16:
      return to == TY_FLOAT32 ? half_to_float : piece_from<Half>(to);
    case TY_BFLOAT16:
      return piece_from<Brain>(to);
    case TY_FLOAT32:
      return to == TY_FLOAT16    ? float_to_half
             : to == TY_BFLOAT16 ? float_to_brain
                                 : piece_from<float>(to);
    case TY_FLOAT64:
      return piece_from<double>(to);
    default:
      return nullptr;
  }
}

int cast(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *, void *) {
  const Piece piece = piece_of(inputs[0].dtype, outputs[0].dtype);
  if (piece == nullptr) {
    return ty_fail(ctx, "cast: dtypes are not served, got codes %d and %d", (int)inputs[0].dtype,
                   (int)outputs[0].dtype);
  }
  ty_parallel(ctx, ty_count(inputs[0]), CAST_GRAIN, [&](int64_t begin, int64_t end, int32_t) {
    piece(inputs[0].data, outputs[0].data, begin, end);
  });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(cast, TY_KERNEL(cast, "cast_any", "loop"))

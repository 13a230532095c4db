// Conversions of 16 values at a time between floats and stored bytes.
#pragma once

#include "int8.hpp"

namespace TY_ISA {
namespace {

enum { GRAIN = 32768 };

// Centres, converts and multiplies 16 stored bytes, each step rounded once.
struct Scaled {
  vf part[Q8_PARTS];
};
TY_INLINE Scaled scaled(const uint8_t *from, int64_t count, bool is_signed, int32_t zero,
                        float factor) {
  const Q8Lanes stored = q8_load16(from, count, is_signed);
  Scaled found;
#pragma GCC unroll 2
  for (int i = 0; i < Q8_PARTS; ++i)
    found.part[i] = vmul(vi_to_vf(vi_sub(stored.part[i], vi_set1(zero))), vset1(factor));
  return found;
}

TY_INLINE void store(uint8_t *to, const Scaled &x, int64_t count, const Q8Store &form) {
  Q8Lanes found;
#pragma GCC unroll 2
  for (int i = 0; i < Q8_PARTS; ++i) found.part[i] = q8_finish(x.part[i], form);
  q8_store16(to, found, count);
}

// Calls body(at, count) for each 16 elements, and for what is left.
template <typename Body>
TY_INLINE void by16(const ty_ctx *ctx, int64_t size, const Body &body) {
  ty_parallel(ctx, ceil_div(size, 16), GRAIN / 16, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin * 16; at < lesser(end * 16, size); at += 16) body(at, size - at);
  });
}

// Floats divided by a scale.
TY_INLINE Scaled divided(const float *from, int64_t count, vf scale) {
  Scaled found;
#pragma GCC unroll 2
  for (int i = 0; i < Q8_PARTS; ++i) {
    const float *at = from + i * TY_VF;
    const int64_t some = count > i * TY_VF ? count - i * TY_VF : 0;
    found.part[i] = vdiv(count >= 16 ? vload(at) : vload_tail(at, vtail_of(some)), scale);
  }
  return found;
}

TY_INLINE void store_floats(float *to, const Scaled &x, int64_t count) {
#pragma GCC unroll 2
  for (int i = 0; i < Q8_PARTS; ++i) {
    const int64_t some = count - i * TY_VF;
    if (some >= TY_VF)
      vstore(to + i * TY_VF, x.part[i]);
    else if (some > 0)
      vstore_tail(to + i * TY_VF, x.part[i], vtail_of(some));
  }
}

}  // namespace
}  // namespace TY_ISA

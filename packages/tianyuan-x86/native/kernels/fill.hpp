// Fills a value with zeros or with one number of its dtype.
#pragma once

#include "strided.hpp"

namespace TY_ISA {
namespace {

__attribute__((unused)) void clear(const ty_ctx *ctx, const ty_tensor &y) {
  char *to = static_cast<char *>(y.data);
  ty_parallel(
      ctx, ty_count(y) * ty_itemsize(y.dtype), 4 * COPY_GRAIN,
      [&](int64_t begin, int64_t end, int32_t) { memset(to + begin, 0, (size_t)(end - begin)); });
}

// Writes the value in an item of a dtype into bits.
__attribute__((unused)) void encode(int32_t dtype, double value, void *bits) {
  switch (dtype) {
    case TY_FLOAT32: {
      const float v = (float)value;
      memcpy(bits, &v, sizeof v);
      return;
    }
    case TY_FLOAT64:
      memcpy(bits, &value, sizeof value);
      return;
    case TY_FLOAT16: {
      const uint16_t v = (uint16_t)_cvtss_sh((float)value, _MM_FROUND_TO_NEAREST_INT);
      memcpy(bits, &v, sizeof v);
      return;
    }
    case TY_BFLOAT16: {
      uint16_t lanes[VF];
      vstore_bf16(lanes, vset1((float)value));
      memcpy(bits, lanes, sizeof lanes[0]);
      return;
    }
    case TY_BOOL: {
      const uint8_t v = value != 0.0;
      memcpy(bits, &v, sizeof v);
      return;
    }
    default: {
      const int64_t v = (int64_t)value;  // little endian: the low bytes come first
      memcpy(bits, &v, (size_t)ty_itemsize(dtype));
    }
  }
}

__attribute__((unused)) void fill(const ty_ctx *ctx, const ty_tensor &y, double value) {
  uint64_t bits = 0;
  encode(y.dtype, value, &bits);
  if (bits == 0) return clear(ctx, y);
  Strided s = {1, {ty_count(y)}, {0}, {1}};
  copy_strided(ctx, s, ty_itemsize(y.dtype), &bits, y.data);
}

}  // namespace
}  // namespace TY_ISA

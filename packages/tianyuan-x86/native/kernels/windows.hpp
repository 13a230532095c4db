// Where the windows of a pooling lie, fixed or adaptive.
#pragma once

#include "kernel.hpp"

namespace TY_ISA {

struct Span {
  int64_t begin, end;
};

// The windows along one axis: fixed where kernel > 0, else `outputs` windows that cover the axis.
struct Windows {
  int64_t size, outputs, kernel, stride, padding;

  Span at(int64_t i) const {
    if (kernel == 0) return {i * size / outputs, ((i + 1) * size + outputs - 1) / outputs};
    const int64_t begin = i * stride - padding, end = begin + kernel;
    return {begin < 0 ? 0 : begin, end > size ? size : end};
  }
};

struct Pooling {
  int64_t planes;
  Windows h, w;
  bool whole_divisor;  // average over the kernel, padding included

  int64_t inputs() const { return h.size * w.size; }
  int64_t outputs() const { return h.outputs * w.outputs; }
  float scale(Span rows, Span columns) const {
    const int64_t count = whole_divisor ? h.kernel * w.kernel
                                        : (rows.end - rows.begin) * (columns.end - columns.begin);
    return (float)(1.0 / (double)count);
  }
};

static inline Pooling pooling_of(const ty_tensor &x, const ty_tensor &y) {
  return {x.shape[0] * x.shape[1],
          {x.shape[2], y.shape[2], 0, 0, 0},
          {x.shape[3], y.shape[3], 0, 0, 0},
          false};
}

static inline Pooling pooling_of(const ty_tensor &x, const ty_tensor &y, const int64_t *kernel,
                                 const int64_t *stride, const int64_t *padding) {
  Pooling p = pooling_of(x, y);
  p.h.kernel = kernel[0];
  p.w.kernel = kernel[1];
  p.h.stride = stride[0];
  p.w.stride = stride[1];
  p.h.padding = padding[0];
  p.w.padding = padding[1];
  return p;
}

// The pooling that an op's attributes describe; x is the full value, y the pooled one.
#define TY_FIXED_POOLING(attrs, x, y)                                                \
  pooling_of(x, y, TY_INTS(attrs, (attrs)->kernel), TY_INTS(attrs, (attrs)->stride), \
             TY_INTS(attrs, (attrs)->padding))

}  // namespace TY_ISA

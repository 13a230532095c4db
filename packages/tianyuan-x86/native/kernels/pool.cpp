// Pooling of plain NCHW float32 and its gradients, plane by plane.
#include <string.h>

#include "vmath.hpp"
#include "windows.hpp"

namespace TY_ISA {
namespace {

static constexpr int64_t POOL_GRAIN = 16384;

// Runs body(plane, slot) over all planes.
template <class Body>
void for_planes(const ty_ctx *ctx, const Pooling &p, const Body &body) {
  ty_parallel(ctx, p.planes, POOL_GRAIN / (p.inputs() + p.outputs() + 1) + 1,
              [&](int64_t begin, int64_t end, int32_t slot) {
                for (int64_t i = begin; i < end; ++i) body(i, slot);
              });
}

TY_INLINE float larger(float a, float b) { return a > b || a != a ? a : b; }

// y[i] = the largest of row[i * stride ... + kernel).
template <int Stride>
void row_maxima(const float *row, float *y, int64_t n, int64_t kernel, int64_t stride) {
  const int64_t s = Stride ? Stride : stride;
  for (int64_t i = 0; i < n; ++i) y[i] = row[i * s];
  for (int64_t k = 1; k < kernel; ++k)
    for (int64_t i = 0; i < n; ++i) y[i] = larger(y[i], row[i * s + k]);
}

// Takes the maximum of the window's rows first, in vectors, then along the one row that is left.
// `row` has room for the padded width.
void max_plane(const Pooling &p, const float *x, float *y, float *row) {
  const int64_t width = (p.w.outputs - 1) * p.w.stride + p.w.kernel;
  for (int64_t i = 0; i < width; ++i) row[i] = -__builtin_inff();
  float *inner = row + p.w.padding;
  const int64_t used = width - p.w.padding < p.w.size ? width - p.w.padding : p.w.size;
  for (int64_t o = 0; o < p.h.outputs; ++o, y += p.w.outputs) {
    const Span rows = p.h.at(o);
    const float *top = x + rows.begin * p.w.size;
    for (int64_t i = 0; i < used; ++i) inner[i] = top[i];
    for (int64_t r = rows.begin + 1; r < rows.end; ++r) {
      const float *line = x + r * p.w.size;
      int64_t i = 0;
      for (; i + VF <= used; i += VF) vstore(inner + i, vmax(vload(inner + i), vload(line + i)));
      for (; i < used; ++i) inner[i] = larger(inner[i], line[i]);
    }
    if (p.w.stride == 1) {
      row_maxima<1>(row, y, p.w.outputs, p.w.kernel, 1);
    } else if (p.w.stride == 2) {
      row_maxima<2>(row, y, p.w.outputs, p.w.kernel, 2);
    } else {
      row_maxima<0>(row, y, p.w.outputs, p.w.kernel, p.w.stride);
    }
  }
}

int64_t padded_width(const Pooling &p) {
  return p.w.size + p.w.outputs * p.w.stride + p.w.kernel + p.w.padding + 64;
}

int max_pool2d(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
               void *workspace) {
  const ty_max_pool2d_attrs *attrs = reinterpret_cast<const ty_max_pool2d_attrs *>(raw);
  const Pooling p = TY_FIXED_POOLING(attrs, inputs[0], outputs[0]);
  const float *x = static_cast<const float *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  for_planes(ctx, p, [&](int64_t i, int32_t slot) {
    max_plane(p, x + i * p.inputs(), y + i * p.outputs(),
              static_cast<float *>(workspace) + slot * padded_width(p));
  });
  return 0;
}

// The offset of the first largest element of a window; the first NaN wins.
TY_INLINE int64_t argmax_of(const float *x, int64_t width, Span rows, Span columns) {
  int64_t at = rows.begin * width + columns.begin;
  float best = x[at];
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t c = columns.begin; c < columns.end; ++c) {
      const float value = x[r * width + c];
      if (best == best && !(value <= best)) {
        best = value;
        at = r * width + c;
      }
    }
  }
  return at;
}

// Room of one thread for fixed windows: a padded input row, the same by phases, the best values and
// where they lie.
struct Scratch {
  float *row, *phases, *best;
  int32_t *at;
};

Scratch scratch_of(const Pooling &p, void *workspace, int32_t slot) {
  const int64_t width = padded_width(p);
  float *base = static_cast<float *>(workspace) + slot * 4 * width;
  float *best = base + 2 * width;
  return {base, base + width, best, reinterpret_cast<int32_t *>(best + width)};
}

TY_INLINE vi lane_numbers() {
  int32_t numbers[VF];
  for (int i = 0; i < VF; ++i) numbers[i] = i;
  return vi_load(numbers);
}

// Compares the k-th element of every window of a row with the best so far. `phases` holds the row's
// elements by their remainder of the stride, so that neighbouring windows read neighbours. Whole
// vectors are worked on: every row of the scratch has room behind its end.
void compare_row(const Pooling &p, const Scratch &s, const float *phases, int64_t length,
                 int32_t offset) {
  const int64_t n = p.w.outputs, step = p.w.stride;
  const vi lanes = vi_mul(lane_numbers(), vi_set1((int32_t)step));
  for (int64_t k = 0; k < p.w.kernel; ++k) {
    const float *from = phases + k % step * length + k / step;
    for (int64_t i = 0; i < n; i += VF) {
      const vf value = vload(from + i), best = vload(s.best + i);
      const vi here = vi_add(lanes, vi_set1(offset + (int32_t)(i * step + k)));
      const vm better = vm_and(vm_not(visnan(best)), vm_not(vle(value, best)));
      vstore(s.best + i, vselect(better, value, best));
      vi_store(s.at + i, vi_select(better, here, vi_load(s.at + i)));
    }
  }
}

// Sorts a padded row by the remainder of the stride; returns the elements of a phase.
int64_t split_phases(const float *__restrict row, float *__restrict phases, int64_t width,
                     int64_t stride) {
  const int64_t length = (width + stride - 1) / stride;
  if (stride == 2) {
    for (int64_t i = 0; i < width / 2; ++i) {
      phases[i] = row[2 * i];
      phases[length + i] = row[2 * i + 1];
    }
    if (width % 2) phases[length - 1] = row[width - 1];
    return length;
  }
  for (int64_t i = 0; i < width; ++i) phases[i % stride * length + i / stride] = row[i];
  return length;
}

// Finds the argmax of all windows of an output row side by side.
void argmax_row(const Pooling &p, const float *x, int64_t oh, const Scratch &s) {
  const Span rows = p.h.at(oh);
  for (int64_t i = 0; i < p.w.outputs; i += VF) {
    vstore(s.best + i, vset1(-__builtin_inff()));
    vi_store(s.at + i, vi_set1(-1));
  }
  const int64_t width = (p.w.outputs - 1) * p.w.stride + p.w.kernel;
  const int64_t inside = width - p.w.padding;
  const int64_t used = inside < p.w.size ? inside : p.w.size;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    memcpy(s.row + p.w.padding, x + r * p.w.size, (size_t)used * sizeof(float));
    const int64_t length =
        p.w.stride == 1 ? width : split_phases(s.row, s.phases, width, p.w.stride);
    const float *phases = p.w.stride == 1 ? s.row : s.phases;
    compare_row(p, s, phases, length, (int32_t)(r * p.w.size - p.w.padding));
  }
  for (int64_t i = 0; i < p.w.outputs; ++i) {
    if (s.at[i] < 0) s.at[i] = (int32_t)(rows.begin * p.w.size + p.w.at(i).begin);  // all are -inf
  }
}

// Runs body(output offset, argmax offset) for every window of a plane. Without a workspace the
// windows, which may then be adaptive, are searched one by one.
template <class Body>
TY_INLINE void for_argmax(const Pooling &p, const float *x, void *workspace, int32_t slot,
                          const Body &body) {
  if (workspace == nullptr || p.w.kernel == 0) {
    for (int64_t oh = 0; oh < p.h.outputs; ++oh) {
      const Span rows = p.h.at(oh);
      for (int64_t ow = 0; ow < p.w.outputs; ++ow) {
        body(oh * p.w.outputs + ow, argmax_of(x, p.w.size, rows, p.w.at(ow)));
      }
    }
    return;
  }
  const Scratch s = scratch_of(p, workspace, slot);
  for (int64_t i = 0; i < padded_width(p); ++i) s.row[i] = -__builtin_inff();
  for (int64_t oh = 0; oh < p.h.outputs; ++oh) {
    argmax_row(p, x, oh, s);
    for (int64_t ow = 0; ow < p.w.outputs; ++ow) body(oh * p.w.outputs + ow, s.at[ow]);
  }
}

int max_forward(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const Pooling &p,
                void *workspace) {
  const float *x = static_cast<const float *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  for_planes(ctx, p, [&](int64_t i, int32_t slot) {
    const float *from = x + i * p.inputs();
    float *to = y + i * p.outputs();
    for_argmax(p, from, workspace, slot, [&](int64_t o, int64_t at) { to[o] = from[at]; });
  });
  return 0;
}

int max_backward(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const Pooling &p,
                 void *workspace) {
  const float *x = static_cast<const float *>(inputs[0].data);
  const float *g = static_cast<const float *>(inputs[1].data);
  float *dx = static_cast<float *>(outputs[0].data);
  for_planes(ctx, p, [&](int64_t i, int32_t slot) {
    const float *grad = g + i * p.outputs();
    float *to = dx + i * p.inputs();
    memset(to, 0, (size_t)p.inputs() * sizeof(float));
    for_argmax(p, x + i * p.inputs(), workspace, slot,
               [&](int64_t o, int64_t at) { to[at] += grad[o]; });
  });
  return 0;
}

int max_pick(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const Pooling &p,
             void *workspace) {
  const float *x = static_cast<const float *>(inputs[0].data);
  const float *t = static_cast<const float *>(inputs[1].data);
  float *y = static_cast<float *>(outputs[0].data);
  for_planes(ctx, p, [&](int64_t i, int32_t slot) {
    const float *from = t + i * p.inputs();
    float *to = y + i * p.outputs();
    for_argmax(p, x + i * p.inputs(), workspace, slot,
               [&](int64_t o, int64_t at) { to[o] = from[at]; });
  });
  return 0;
}

// Adds the window's rows up first, in vectors; `row` has room for the width.
void average_plane(const Pooling &p, const float *x, float *y, float *row) {
  for (int64_t oh = 0; oh < p.h.outputs; ++oh) {
    const Span rows = p.h.at(oh);
    const float *top = x + rows.begin * p.w.size;
    for (int64_t i = 0; i < p.w.size; ++i) row[i] = top[i];
    for (int64_t r = rows.begin + 1; r < rows.end; ++r) {
      const float *line = x + r * p.w.size;
      for (int64_t i = 0; i < p.w.size; ++i) row[i] += line[i];
    }
    for (int64_t ow = 0; ow < p.w.outputs; ++ow) {
      const Span columns = p.w.at(ow);
      float sum = 0.0f;
      for (int64_t c = columns.begin; c < columns.end; ++c) sum += row[c];
      y[oh * p.w.outputs + ow] = sum * p.scale(rows, columns);
    }
  }
}

int average_forward(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                    const Pooling &p, void *workspace) {
  const float *x = static_cast<const float *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  for_planes(ctx, p, [&](int64_t i, int32_t slot) {
    average_plane(p, x + i * p.inputs(), y + i * p.outputs(),
                  static_cast<float *>(workspace) + slot * p.w.size);
  });
  return 0;
}

// Spreads an output row's gradient into one input row, which is then added to the window's rows.
void average_gradient(const Pooling &p, const float *g, float *dx, float *row) {
  memset(dx, 0, (size_t)p.inputs() * sizeof(float));
  for (int64_t oh = 0; oh < p.h.outputs; ++oh) {
    const Span rows = p.h.at(oh);
    for (int64_t i = 0; i < p.w.size; ++i) row[i] = 0.0f;
    for (int64_t ow = 0; ow < p.w.outputs; ++ow) {
      const Span columns = p.w.at(ow);
      const float part = g[oh * p.w.outputs + ow] * p.scale(rows, columns);
      for (int64_t c = columns.begin; c < columns.end; ++c) row[c] += part;
    }
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      float *line = dx + r * p.w.size;
      for (int64_t i = 0; i < p.w.size; ++i) line[i] += row[i];
    }
  }
}

int average_backward(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                     const Pooling &p, void *workspace) {
  const float *g = static_cast<const float *>(inputs[0].data);
  float *dx = static_cast<float *>(outputs[0].data);
  for_planes(ctx, p, [&](int64_t i, int32_t slot) {
    average_gradient(p, g + i * p.outputs(), dx + i * p.inputs(),
                     static_cast<float *>(workspace) + slot * p.w.size);
  });
  return 0;
}

#define ARGUMENTS \
  const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw, void *ws

int max_pool2d_backward(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_max_pool2d_backward_attrs *>(raw);
  return max_backward(ctx, inputs, outputs, TY_FIXED_POOLING(attrs, inputs[0], inputs[1]), ws);
}

int max_pool2d_pick(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_max_pool2d_pick_attrs *>(raw);
  return max_pick(ctx, inputs, outputs, TY_FIXED_POOLING(attrs, inputs[0], outputs[0]), ws);
}

int avg_pool2d(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_avg_pool2d_attrs *>(raw);
  Pooling p = TY_FIXED_POOLING(attrs, inputs[0], outputs[0]);
  p.whole_divisor = attrs->count_include_pad != 0;
  return average_forward(ctx, inputs, outputs, p, ws);
}

int avg_pool2d_backward(ARGUMENTS) {
  const auto *attrs = reinterpret_cast<const ty_avg_pool2d_backward_attrs *>(raw);
  Pooling p = TY_FIXED_POOLING(attrs, outputs[0], inputs[0]);
  p.whole_divisor = attrs->count_include_pad != 0;
  return average_backward(ctx, inputs, outputs, p, ws);
}

int adaptive_avg_pool2d(ARGUMENTS) {
  (void)raw;
  return average_forward(ctx, inputs, outputs, pooling_of(inputs[0], outputs[0]), ws);
}

int adaptive_avg_pool2d_backward(ARGUMENTS) {
  (void)raw;
  return average_backward(ctx, inputs, outputs, pooling_of(outputs[0], inputs[0]), ws);
}

int adaptive_max_pool2d(ARGUMENTS) {
  (void)raw;
  return max_forward(ctx, inputs, outputs, pooling_of(inputs[0], outputs[0]), ws);
}

int adaptive_max_pool2d_backward(ARGUMENTS) {
  (void)raw;
  return max_backward(ctx, inputs, outputs, pooling_of(inputs[0], inputs[1]), ws);
}

int adaptive_max_pool2d_pick(ARGUMENTS) {
  (void)raw;
  return max_pick(ctx, inputs, outputs, pooling_of(inputs[0], outputs[0]), ws);
}

}  // namespace
}  // namespace TY_ISA

#define POOL(op) TY_KERNEL(op, #op "_f32", "planes")

TY_EXPORT_KERNELS(pool, POOL(max_pool2d), POOL(max_pool2d_backward), POOL(max_pool2d_pick),
                  POOL(avg_pool2d), POOL(avg_pool2d_backward), POOL(adaptive_avg_pool2d),
                  POOL(adaptive_avg_pool2d_backward), POOL(adaptive_max_pool2d),
                  POOL(adaptive_max_pool2d_backward), POOL(adaptive_max_pool2d_pick))

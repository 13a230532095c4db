// softmax, log_softmax, their gradients, logsumexp, argmax, argmin, cumsum and cumprod: what works
// along one axis of a value seen as (outer, axis, inner).
#include "kernel.hpp"
#include "vmath.hpp"

namespace TY_ISA {
namespace {

static constexpr int64_t COLUMNS = 64;  // inner positions that are worked on side by side
static constexpr int64_t AXIS_GRAIN = 8192;

struct Axes {
  int64_t outer, axis, inner;
};

Axes axes_of(const ty_tensor &x, int64_t first, int64_t last) {
  Axes a = {1, 1, 1};
  for (int d = 0; d < x.ndim; ++d) {
    (d < first ? a.outer : d > last ? a.inner : a.axis) *= x.shape[d];
  }
  return a;
}

// Runs body(offset of the first element, columns) over tiles of the inner positions.
template <class Body>
void for_tiles(const ty_ctx *ctx, const Axes &a, const Body &body) {
  const int64_t tiles = (a.inner + COLUMNS - 1) / COLUMNS;
  const int64_t weight = a.axis * (a.inner < COLUMNS ? a.inner : COLUMNS) + 1;
  ty_parallel(ctx, a.outer * tiles, AXIS_GRAIN / weight + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t o = i / tiles, column = i % tiles * COLUMNS;
                  const int64_t left = a.inner - column;
                  body(o, column, left < COLUMNS ? left : COLUMNS);
                }
              });
}

TY_INLINE float max_of(const float *x, int64_t n) {
  vf best = vset1(-__builtin_inff());
  int64_t i = 0;
  for (; i + VF <= n; i += VF) best = vmax(best, vload(x + i));
  if (i < n) {
    const vtail t = vtail_of(n - i);
    best = vmax(best, vselect(vtail_mask(t), vload_tail(x + i, t), vset1(-__builtin_inff())));
  }
  return vhmax(best);
}

// An infinite maximum would turn the differences into NaN where they are 0 or -inf.
TY_INLINE float shift_of(float best) {
  return best == __builtin_inff() || best == -__builtin_inff() ? 0.0f : best;
}

// Sum of exp(x - shift), and with y also the terms themselves.
TY_INLINE double exp_sum(const float *x, float *y, int64_t n, float shift) {
  const vf s = vset1(shift);
  double total = 0.0;
  for (int64_t at = 0; at < n; at += 1024) {
    const int64_t block = n - at < 1024 ? n - at : 1024;
    vf sum = vzero();
    int64_t i = at;
    for (; i + VF <= at + block; i += VF) {
      const vf e = vexp(vsub(vload(x + i), s));
      if (y != nullptr) vstore(y + i, e);
      sum = vadd(sum, e);
    }
    if (i < at + block) {
      const vtail t = vtail_of(at + block - i);
      const vf e = vexp(vsub(vload_tail(x + i, t), s));
      if (y != nullptr) vstore_tail(y + i, e, t);
      sum = vadd(sum, vselect(vtail_mask(t), e, vzero()));
    }
    total += vhsum(sum);
  }
  return total;
}

TY_INLINE float log_of(double x) { return (float)__builtin_log(x); }

void softmax_row(const float *x, float *y, int64_t n, bool logarithm) {
  const float best = max_of(x, n);
  if (logarithm) {
    const float low = log_of(exp_sum(x, nullptr, n, best));
    const vf s = vset1(best), l = vset1(low);
    int64_t i = 0;
    for (; i + VF <= n; i += VF) vstore(y + i, vsub(vsub(vload(x + i), s), l));
    for (; i < n; ++i) y[i] = x[i] - best - low;
    return;
  }
  const float scale = (float)(1.0 / exp_sum(x, y, n, best));
  for (int64_t i = 0; i < n; ++i) y[i] *= scale;
}

// The same over n columns that lie side by side, rows a stride apart.
void softmax_columns(const float *x, float *y, int64_t rows, int64_t stride, int64_t n,
                     bool logarithm) {
  float best[COLUMNS], sum[COLUMNS];
  for (int64_t i = 0; i < n; ++i) best[i] = -__builtin_inff();
  for (int64_t r = 0; r < rows; ++r) {
    const float *row = x + r * stride;
    for (int64_t i = 0; i < n; ++i)
      best[i] = row[i] > best[i] || row[i] != row[i] ? row[i] : best[i];
  }
  for (int64_t i = 0; i < n; i += VF) {
    const vtail t = vtail_of(n - i);
    const vf shift = vload_tail(best + i, t);
    vf total = vzero(), part = vzero();
    for (int64_t r = 0; r < rows; ++r) {
      const vf e = vexp(vsub(vload_tail(x + r * stride + i, t), shift));
      if (!logarithm) vstore_tail(y + r * stride + i, e, t);
      part = vadd(part, e);
      if (r % 64 == 63) {
        total = vadd(total, part);
        part = vzero();
      }
    }
    total = vadd(total, part);
    vstore_tail(sum + i, logarithm ? vlog(total) : vdiv(vset1(1.0f), total), t);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float *from = x + r * stride;
    float *to = y + r * stride;
    if (logarithm) {
      for (int64_t i = 0; i < n; ++i) to[i] = from[i] - best[i] - sum[i];
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] *= sum[i];
    }
  }
}

template <bool Logarithm, class Attrs>
int softmax(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
            void *) {
  const int64_t axis = reinterpret_cast<const Attrs *>(raw)->axis;
  const Axes a = axes_of(inputs[0], axis, axis);
  const float *x = static_cast<const float *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  for_tiles(ctx, a, [&](int64_t o, int64_t column, int64_t n) {
    const int64_t at = o * a.axis * a.inner + column;
    if (a.inner == 1) {
      softmax_row(x + at, y + at, a.axis, Logarithm);
    } else {
      softmax_columns(x + at, y + at, a.axis, a.inner, n, Logarithm);
    }
  });
  return 0;
}

void softmax_gradient_row(const float *y, const float *g, float *dx, int64_t n) {
  double total = 0.0;
  for (int64_t at = 0; at < n; at += 1024) {
    const int64_t end = n - at < 1024 ? n : at + 1024;
    vf sum = vzero();
    int64_t i = at;
    for (; i + VF <= end; i += VF) sum = vfma(vload(y + i), vload(g + i), sum);
    if (i < end) {
      const vtail t = vtail_of(end - i);
      sum = vfma(vload_tail(y + i, t), vload_tail(g + i, t), sum);
    }
    total += vhsum(sum);
  }
  const float mean = (float)total;
  for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (g[i] - mean);
}

void log_softmax_gradient_row(const float *y, const float *g, float *dx, int64_t n) {
  double total = 0.0;
  for (int64_t at = 0; at < n; at += 1024) {
    const int64_t end = n - at < 1024 ? n : at + 1024;
    vf sum = vzero();
    int64_t i = at;
    for (; i + VF <= end; i += VF) sum = vadd(sum, vload(g + i));
    if (i < end) sum = vadd(sum, vload_tail(g + i, vtail_of(end - i)));
    total += vhsum(sum);
  }
  const vf s = vset1((float)total);
  int64_t i = 0;
  for (; i + VF <= n; i += VF) vstore(dx + i, vfnma(vexp(vload(y + i)), s, vload(g + i)));
  if (i < n) {
    const vtail t = vtail_of(n - i);
    vstore_tail(dx + i, vfnma(vexp(vload_tail(y + i, t)), s, vload_tail(g + i, t)), t);
  }
}

void gradient_columns(const float *y, const float *g, float *dx, int64_t rows, int64_t stride,
                      int64_t n, bool logarithm) {
  for (int64_t i = 0; i < n; i += VF) {
    const vtail t = vtail_of(n - i);
    vf total = vzero();
    for (int64_t r = 0; r < rows; ++r) {
      const vf grad = vload_tail(g + r * stride + i, t);
      total = logarithm ? vadd(total, grad) : vfma(vload_tail(y + r * stride + i, t), grad, total);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const vf out = vload_tail(y + r * stride + i, t), grad = vload_tail(g + r * stride + i, t);
      const vf result = logarithm ? vfnma(vexp(out), total, grad) : vmul(out, vsub(grad, total));
      vstore_tail(dx + r * stride + i, result, t);
    }
  }
}

template <bool Logarithm, class Attrs>
int softmax_backward(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                     const ty_attrs *raw, void *) {
  const int64_t axis = reinterpret_cast<const Attrs *>(raw)->axis;
  const Axes a = axes_of(inputs[0], axis, axis);
  const float *y = static_cast<const float *>(inputs[0].data);
  const float *g = static_cast<const float *>(inputs[1].data);
  float *dx = static_cast<float *>(outputs[0].data);
  for_tiles(ctx, a, [&](int64_t o, int64_t column, int64_t n) {
    const int64_t at = o * a.axis * a.inner + column;
    if (a.inner > 1) {
      gradient_columns(y + at, g + at, dx + at, a.axis, a.inner, n, Logarithm);
    } else if (Logarithm) {
      log_softmax_gradient_row(y + at, g + at, dx + at, a.axis);
    } else {
      softmax_gradient_row(y + at, g + at, dx + at, a.axis);
    }
  });
  return 0;
}

int logsumexp(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
              void *) {
  const ty_logsumexp_attrs *attrs = reinterpret_cast<const ty_logsumexp_attrs *>(raw);
  const int64_t *axes = TY_INTS(attrs, attrs->axes);
  const int64_t count = attrs->axes.count;
  const Axes a = axes_of(inputs[0], axes[0], axes[count - 1]);
  const float *x = static_cast<const float *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  for_tiles(ctx, a, [&](int64_t o, int64_t column, int64_t n) {
    const float *from = x + o * a.axis * a.inner + column;
    float *to = y + o * a.inner + column;
    if (a.inner == 1) {
      const float shift = shift_of(max_of(from, a.axis));
      *to = shift + log_of(exp_sum(from, nullptr, a.axis, shift));
      return;
    }
    for (int64_t i = 0; i < n; i += VF) {
      const vtail t = vtail_of(n - i);
      vf best = vset1(-__builtin_inff()), sum = vzero();
      for (int64_t r = 0; r < a.axis; ++r) best = vmax(best, vload_tail(from + r * a.inner + i, t));
      best = vselect(veq(vabs(best), vinf()), vzero(), best);
      for (int64_t r = 0; r < a.axis; ++r) {
        sum = vadd(sum, vexp(vsub(vload_tail(from + r * a.inner + i, t), best)));
      }
      vstore_tail(to + i, vadd(best, vlog(sum)), t);
    }
  });
  return 0;
}

// NaN is the extreme and the first one wins, as in numpy.
template <class T, bool Max>
inline bool improves(T candidate, T best) {
  return best == best && ((Max ? candidate > best : candidate < best) || candidate != candidate);
}

template <class T, bool Max>
int32_t arg_row(const T *x, int64_t n) {
  T best = x[0];
  int32_t index = 0;
  for (int64_t i = 1; i < n; ++i) {
    if (improves<T, Max>(x[i], best)) {
      best = x[i];
      index = (int32_t)i;
    }
  }
  return index;
}

template <class T, bool Max, class Attrs>
int arg_extreme(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
                void *) {
  const int64_t axis = reinterpret_cast<const Attrs *>(raw)->axis;
  const Axes a = axes_of(inputs[0], axis, axis);
  const T *x = static_cast<const T *>(inputs[0].data);
  int32_t *y = static_cast<int32_t *>(outputs[0].data);
  for_tiles(ctx, a, [&](int64_t o, int64_t column, int64_t n) {
    const T *from = x + o * a.axis * a.inner + column;
    int32_t *to = y + o * a.inner + column;
    if (a.inner == 1) {
      *to = arg_row<T, Max>(from, a.axis);
      return;
    }
    T best[COLUMNS];
    for (int64_t i = 0; i < n; ++i) {
      best[i] = from[i];
      to[i] = 0;
    }
    for (int64_t r = 1; r < a.axis; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        const T value = from[r * a.inner + i];
        const bool better = improves<T, Max>(value, best[i]);
        best[i] = better ? value : best[i];
        to[i] = better ? (int32_t)r : to[i];
      }
    }
  });
  return 0;
}

template <class T, class A, bool Product, class Attrs>
int cumulate(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
             void *) {
  const int64_t axis = reinterpret_cast<const Attrs *>(raw)->axis;
  const Axes a = axes_of(inputs[0], axis, axis);
  const T *x = static_cast<const T *>(inputs[0].data);
  T *y = static_cast<T *>(outputs[0].data);
  for_tiles(ctx, a, [&](int64_t o, int64_t column, int64_t n) {
    if (a.inner == 1) {
      A total = Product ? A(1) : A(0);
      for (int64_t i = o * a.axis; i < (o + 1) * a.axis; ++i) {
        total = Product ? total * (A)x[i] : total + (A)x[i];
        y[i] = (T)total;
      }
      return;
    }
    A running[COLUMNS];
    for (int64_t i = 0; i < n; ++i) running[i] = Product ? A(1) : A(0);
    for (int64_t r = 0; r < a.axis; ++r) {
      const int64_t at = (o * a.axis + r) * a.inner + column;
      for (int64_t i = 0; i < n; ++i) {
        const A value = (A)x[at + i];
        running[i] = Product ? running[i] * value : running[i] + value;
        y[at + i] = (T)running[i];
      }
    }
  });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

#define ARG(T, types)                                                          \
  TY_KERNEL((arg_extreme<T, true, ty_argmax_attrs>), "argmax_" types, "axis"), \
      TY_KERNEL((arg_extreme<T, false, ty_argmin_attrs>), "argmin_" types, "axis")
#define CUMULATE(T, A, types)                                                   \
  TY_KERNEL((cumulate<T, A, false, ty_cumsum_attrs>), "cumsum_" types, "axis"), \
      TY_KERNEL((cumulate<T, A, true, ty_cumprod_attrs>), "cumprod_" types, "axis")

TY_EXPORT_KERNELS(softmax, TY_KERNEL((softmax<false, ty_softmax_attrs>), "softmax_f32", "axis"),
                  TY_KERNEL((softmax<true, ty_log_softmax_attrs>), "log_softmax_f32", "axis"),
                  TY_KERNEL((softmax_backward<false, ty_softmax_backward_attrs>),
                            "softmax_backward_f32", "axis"),
                  TY_KERNEL((softmax_backward<true, ty_log_softmax_backward_attrs>),
                            "log_softmax_backward_f32", "axis"),
                  TY_KERNEL(logsumexp, "logsumexp_f32", "axis"), ARG(float, "f32"),
                  ARG(int32_t, "i32"), ARG(int64_t, "i64"), ARG(uint8_t, "u8"),
                  CUMULATE(float, double, "f32"), CUMULATE(int32_t, uint32_t, "i32"),
                  CUMULATE(int64_t, uint64_t, "i64"))

// layer_norm, its gradient, and group_norm: one row of statistics at a time.
#include <string.h>

#include "kernel.hpp"
#include "lanes.hpp"
#include "moments.hpp"

namespace TY_ISA {
namespace {

static constexpr int64_t ROW_GRAIN = 16384;
static constexpr int64_t PARTS = 16;  // partial sums of dweight, as kernels/norm.py knows

struct Rows {
  int64_t count, length;
};

Rows rows_of(const ty_tensor &x, int64_t inner_axes) {
  Rows r = {1, 1};
  for (int d = 0; d < x.ndim; ++d) (d < x.ndim - inner_axes ? r.count : r.length) *= x.shape[d];
  return r;
}

Moments moments_of(const float *x, int64_t n) {
  Moments m = {0.0, 0.0, 0.0};
  moments_add(&m, x, n);
  return m;
}

TY_INLINE double inverse_deviation(const Moments &m, double eps) {
  return 1.0 / __builtin_sqrt(m.squares / m.count + eps);
}

void affine_row(const float *x, float *y, int64_t n, float mean, float scale, const float *weight,
                const float *bias) {
  const vf c = vset1(mean), s = vset1(scale);
  for_lanes(0, n, [&](int64_t i, auto lanes) {
    const vf normal = vmul(vsub(lanes.load(x + i), c), s);
    lanes.store(y + i, vfma(normal, lanes.load(weight + i), lanes.load(bias + i)));
  });
}

// inputs: x, [weight, bias]
int layer_norm(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
               void *) {
  const auto *attrs = reinterpret_cast<const ty_layer_norm_attrs *>(raw);
  const Rows r = rows_of(inputs[0], attrs->ndim);
  const float *x = static_cast<const float *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  ty_parallel(ctx, r.count, ROW_GRAIN / (r.length + 1) + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t i = begin; i < end; ++i) {
                  const float *from = x + i * r.length;
                  const Moments m = moments_of(from, r.length);
                  const float scale = (float)inverse_deviation(m, attrs->eps);
                  if (attrs->affine) {
                    affine_row(from, y + i * r.length, r.length, (float)m.mean, scale,
                               static_cast<const float *>(inputs[1].data),
                               static_cast<const float *>(inputs[2].data));
                  } else {
                    normalize_run(from, y + i * r.length, r.length, (float)m.mean, scale, 0.0f);
                  }
                }
              });
  return 0;
}

// Sums over rows for the gradients of weight and bias, one behind the other and with room for whole
// vectors: those of a few rows in floats, of all in double.
struct RowSums {
  double *all;
  float *few;
  int64_t room;
};

enum { FEW_ROWS = 32 };

void join_few(const RowSums &sums) {
  for (int64_t i = 0; i < 2 * sums.room; ++i) {
    sums.all[i] += sums.few[i];
    sums.few[i] = 0.0f;
  }
}

// Sums of h = g * weight and of h * (x - center); adds g (x - center) s and g to the sums of rows.
void weighted_sums(const float *x, const float *g, const float *weight, int64_t n, float center,
                   float s, const RowSums &rows, double *sum, double *product) {
  const vf c = vset1(center), scale = vset1(s);
  float *const dweight = rows.few, *const dbias = rows.few + rows.room;
  for (int64_t at = 0; at < n; at += MOMENT_BLOCK) {
    const int64_t end = n - at < MOMENT_BLOCK ? n : at + MOMENT_BLOCK;
    vf first = vzero(), second = vzero();
    for_lanes(at, end, [&](int64_t i, auto lanes) {
      const vf grad = lanes.load(g + i), away = vsub(lanes.load(x + i), c);
      const vf h = vmul(grad, lanes.load(weight + i));
      first = vadd(first, h);
      second = vfma(h, away, second);
      vstore(dweight + i, vfma(grad, vmul(away, scale), vload(dweight + i)));
      vstore(dbias + i, vadd(grad, vload(dbias + i)));
    });
    *sum += vhsum(first);
    *product += vhsum(second);
  }
}

// dx = s (h - mean(h) - n mean(h n)) with n the normalised row, s its scale and h = g * weight.
void gradient_row(const float *x, const float *g, const float *weight, float *dx, int64_t n,
                  double eps, const RowSums &rows) {
  const Moments m = moments_of(x, n);
  const float center = (float)m.mean, s = (float)inverse_deviation(m, eps);
  double sum = 0.0, product = 0.0;
  if (weight == nullptr) {
    gradient_sums(x, g, n, center, &sum, &product);
  } else {
    weighted_sums(x, g, weight, n, center, s, rows, &sum, &product);
  }
  const vf c = vset1(center), scale = vset1(s), mean = vset1((float)(sum / (double)n));
  const vf along = vset1((float)(product * s * s / (double)n));
  for_lanes(0, n, [&](int64_t i, auto lanes) {
    const vf grad = lanes.load(g + i);
    const vf h = weight == nullptr ? grad : vmul(grad, lanes.load(weight + i));
    const vf rest = vfnma(vsub(lanes.load(x + i), c), along, vsub(h, mean));
    lanes.store(dx + i, vmul(scale, rest));
  });
}

// inputs: x, g, [weight]; outputs: dx, [dweight, dbias]. Rows are cut into a fixed number of parts
// with sums of their own, so that the result does not depend on the number of threads.
int layer_norm_backward(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                        const ty_attrs *raw, void *workspace) {
  const auto *attrs = reinterpret_cast<const ty_layer_norm_backward_attrs *>(raw);
  const Rows r = rows_of(inputs[0], attrs->ndim);
  const float *x = static_cast<const float *>(inputs[0].data);
  const float *g = static_cast<const float *>(inputs[1].data);
  const float *weight = attrs->affine ? static_cast<const float *>(inputs[2].data) : nullptr;
  float *dx = static_cast<float *>(outputs[0].data);
  double *sums = static_cast<double *>(workspace);
  const int64_t room = (r.length + VF - 1) / VF * VF, size = 2 * room;
  float *const few = reinterpret_cast<float *>(sums + PARTS * size);
  if (weight != nullptr) memset(sums, 0, (size_t)(PARTS * size) * (sizeof(double) + sizeof(float)));
  ty_parallel(ctx, PARTS, ROW_GRAIN * PARTS / (r.length * r.count + 1) + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t part = begin; part < end; ++part) {
                  const RowSums mine = {sums + part * size, few + part * size, room};
                  const int64_t first = r.count * part / PARTS;
                  const int64_t last = r.count * (part + 1) / PARTS;
                  for (int64_t i = first; i < last; ++i) {
                    gradient_row(x + i * r.length, g + i * r.length, weight, dx + i * r.length,
                                 r.length, attrs->eps, mine);
                    if (weight != nullptr && (i + 1 == last || (i + 1 - first) % FEW_ROWS == 0))
                      join_few(mine);
                  }
                }
              });
  if (weight == nullptr) return 0;
  float *dweight = static_cast<float *>(outputs[1].data);
  float *dbias = static_cast<float *>(outputs[2].data);
  for (int64_t i = 0; i < r.length; ++i) {
    double product = 0.0, sum = 0.0;
    for (int64_t part = 0; part < PARTS; ++part) {
      product += sums[part * 2 * room + i];
      sum += sums[(part * 2 + 1) * room + i];
    }
    dweight[i] = (float)product;
    dbias[i] = (float)sum;
  }
  return 0;
}

// inputs: x (N, C, ...), weight (C,), bias (C,)
int group_norm(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
               void *) {
  const auto *attrs = reinterpret_cast<const ty_group_norm_attrs *>(raw);
  const int64_t channels = inputs[0].shape[1], members = channels / attrs->groups;
  int64_t pixels = 1;
  for (int d = 2; d < inputs[0].ndim; ++d) pixels *= inputs[0].shape[d];
  const int64_t length = members * pixels;
  const float *x = static_cast<const float *>(inputs[0].data);
  const float *weight = static_cast<const float *>(inputs[1].data);
  const float *bias = static_cast<const float *>(inputs[2].data);
  float *y = static_cast<float *>(outputs[0].data);
  ty_parallel(ctx, inputs[0].shape[0] * attrs->groups, ROW_GRAIN / (length + 1) + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t i = begin; i < end; ++i) {
                  const Moments m = moments_of(x + i * length, length);
                  const double s = inverse_deviation(m, attrs->eps);
                  const int64_t first = i % attrs->groups * members;
                  for (int64_t c = 0; c < members; ++c) {
                    const int64_t at = i * length + c * pixels;
                    normalize_run(x + at, y + at, pixels, (float)m.mean,
                                  (float)(s * (double)weight[first + c]), bias[first + c]);
                  }
                }
              });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(layer_norm, TY_KERNEL(layer_norm, "layer_norm_f32", "rows"),
                  TY_KERNEL(layer_norm_backward, "layer_norm_backward_f32", "rows"),
                  TY_KERNEL(group_norm, "group_norm_f32", "rows"))

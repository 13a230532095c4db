// batch_norm, batch_norm_train and batch_norm_backward. Where channels lie apart (N, C, pixels) one
// channel is worked on at a time; where they lie side by side (N, C, and blocked images) a vector
// of them is.
#include "kernel.hpp"
#include "lanes.hpp"
#include "moments.hpp"

namespace TY_ISA {
namespace {

static constexpr int64_t NORM_GRAIN = 16384;

struct Image {
  int64_t batch, channels, pixels;

  int64_t offset(int64_t n, int64_t c) const { return (n * channels + c) * pixels; }
  double count() const { return (double)(batch * pixels); }
};

Image image_of(const ty_tensor &x) {
  Image m = {x.shape[0], x.shape[1], 1};
  for (int d = 2; d < x.ndim; ++d) m.pixels *= x.shape[d];
  return m;
}

// Channels side by side: `outer` groups of `rows` vectors.
struct Lanes {
  int64_t tiles, outer, outer_stride, tile_stride, rows, stride;
};

Lanes lanes_of(const Image &m, bool blocked) {
  const int64_t tiles = (m.channels + VF - 1) / VF;
  if (blocked) return {tiles, m.batch, tiles * m.pixels * VF, m.pixels * VF, m.pixels, VF};
  return {tiles, 1, 0, VF, m.batch, m.channels};
}

// Runs body(tile, live channels) over the vectors of channels.
template <class Body>
void for_tiles(const ty_ctx *ctx, const Image &m, const Lanes &l, const Body &body) {
  ty_parallel(ctx, l.tiles, NORM_GRAIN / (l.outer * l.rows * VF + 1) + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t tile = begin; tile < end; ++tile)
                  body(tile, vtail_of(m.channels - tile * VF));
              });
}

// Runs body(offset) over the vectors of a tile. Plain rows of the last tile reach beyond it, which
// is why loads and stores are masked unless the layout pads.
template <class Body>
TY_INLINE void for_vectors(const Lanes &l, int64_t tile, const Body &body) {
  for (int64_t o = 0; o < l.outer; ++o) {
    const int64_t base = o * l.outer_stride + tile * l.tile_stride;
    for (int64_t r = 0; r < l.rows; ++r) body(base + r * l.stride);
  }
}

// Calls body with the way to load and store a tile: whole vectors where all lanes are in memory.
template <class Body>
TY_INLINE void with_lanes(const Image &m, int64_t tile, bool blocked, vtail live,
                          const Body &body) {
  if (blocked || (tile + 1) * VF <= m.channels) {
    body(Whole());
  } else {
    body(Tail{live});
  }
}

TY_INLINE vf channel(const void *p, int64_t tile, vtail live) {
  return vload_tail(static_cast<const float *>(p) + tile * VF, live);
}
TY_INLINE void set_channel(void *p, int64_t tile, vtail live, vf value) {
  vstore_tail(static_cast<float *>(p) + tile * VF, value, live);
}
// weight / sqrt(var + eps), 0 in lanes without a channel.
TY_INLINE vf scale_of(vf weight, vf variance, double eps, vtail live) {
  const vf s = vdiv(weight, vsqrt(vadd(variance, vset1((float)eps))));
  return vselect(vtail_mask(live), s, vzero());
}
TY_INLINE float scale_of(float weight, double variance, double eps) {
  return (float)((double)weight / __builtin_sqrt(variance + eps));
}

void normalize_lanes(const Image &m, const Lanes &l, int64_t tile, bool blocked, vtail live,
                     const float *x, float *y, vf mean, vf scale, vf bias) {
  with_lanes(m, tile, blocked, live, [&](auto lanes) {
    for_vectors(l, tile, [&](int64_t at) {
      lanes.store(y + at, vfma(vsub(lanes.load(x + at), mean), scale, bias));
    });
  });
}

// inputs: x, mean, var, weight, bias
template <bool Blocked>
int batch_norm(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *raw,
               void *) {
  const double eps = reinterpret_cast<const ty_batch_norm_attrs *>(raw)->eps;
  const Image m = image_of(inputs[0]);
  const float *x = static_cast<const float *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  const float *mean = static_cast<const float *>(inputs[1].data);
  const float *variance = static_cast<const float *>(inputs[2].data);
  const float *weight = static_cast<const float *>(inputs[3].data);
  const float *bias = static_cast<const float *>(inputs[4].data);
  if (!Blocked && m.pixels != 1) {
    ty_parallel(ctx, m.batch * m.channels, NORM_GRAIN / (m.pixels + 1) + 1,
                [&](int64_t begin, int64_t end, int32_t) {
                  for (int64_t i = begin; i < end; ++i) {
                    const int64_t c = i % m.channels;
                    normalize_run(x + i * m.pixels, y + i * m.pixels, m.pixels, mean[c],
                                  scale_of(weight[c], variance[c], eps), bias[c]);
                  }
                });
    return 0;
  }
  const Lanes all = lanes_of(m, Blocked);
  // One piece is a vector of channels of one image, or of a run of rows.
  const int64_t run = Blocked ? 1 : 64, parts = (m.batch + run - 1) / run;
  ty_parallel(ctx, all.tiles * parts, NORM_GRAIN / (m.pixels * run * VF + 1) + 1,
              [&](int64_t begin, int64_t end, int32_t) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t tile = i % all.tiles, first = i / all.tiles * run;
                  Lanes l = all;
                  if (Blocked) {
                    l.outer = 1;
                  } else {
                    l.rows = m.batch - first < run ? m.batch - first : run;
                  }
                  const int64_t skip = first * (Blocked ? all.outer_stride : all.stride);
                  const vtail live = vtail_of(m.channels - tile * VF);
                  const vf scale = scale_of(channel(weight, tile, live),
                                            channel(variance, tile, live), eps, live);
                  normalize_lanes(m, l, tile, Blocked, live, x + skip, y + skip,
                                  channel(mean, tile, live), scale, channel(bias, tile, live));
                }
              });
  return 0;
}

// NaN where there is nothing to average, as the variance is.
TY_INLINE double mean_of(const Moments &m) {
  return m.count > 0.0 ? m.mean : (double)__builtin_nanf("");
}

// Mean and biased variance of every lane, blocks of 256 vectors joined in double.
void lane_moments(const Lanes &l, int64_t tile, vtail mask, const float *x, float *mean,
                  float *variance) {
  Moments joined[VF] = {};
  for (int64_t o = 0; o < l.outer; ++o) {
    const float *base = x + o * l.outer_stride + tile * l.tile_stride;
    for (int64_t at = 0; at < l.rows; at += 256) {
      const int64_t end = l.rows - at < 256 ? l.rows : at + 256;
      vf sum = vzero(), squares = vzero();
      for (int64_t r = at; r < end; ++r) sum = vadd(sum, vload_tail(base + r * l.stride, mask));
      const vf center = vdiv(sum, vset1((float)(end - at)));
      for (int64_t r = at; r < end; ++r) {
        const vf d = vsub(vload_tail(base + r * l.stride, mask), center);
        squares = vfma(d, d, squares);
      }
      float centers[VF], parts[VF];
      vstore(centers, center);
      vstore(parts, squares);
      for (int i = 0; i < VF; ++i)
        moments_join(joined + i, (double)(end - at), centers[i], parts[i]);
    }
  }
  for (int i = 0; i < VF; ++i) {
    mean[i] = (float)mean_of(joined[i]);
    variance[i] = (float)(joined[i].squares / joined[i].count);
  }
}

// inputs: x, weight, bias; outputs: y, mean, var
template <bool Blocked>
int batch_norm_train(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                     const ty_attrs *raw, void *) {
  const double eps = reinterpret_cast<const ty_batch_norm_train_attrs *>(raw)->eps;
  const Image m = image_of(inputs[0]);
  const float *x = static_cast<const float *>(inputs[0].data);
  const float *weight = static_cast<const float *>(inputs[1].data);
  const float *bias = static_cast<const float *>(inputs[2].data);
  float *y = static_cast<float *>(outputs[0].data);
  float *mean = static_cast<float *>(outputs[1].data);
  float *variance = static_cast<float *>(outputs[2].data);
  if (!Blocked && m.pixels != 1) {
    ty_parallel(ctx, m.channels, NORM_GRAIN / (m.batch * m.pixels + 1) + 1,
                [&](int64_t begin, int64_t end, int32_t) {
                  for (int64_t c = begin; c < end; ++c) {
                    Moments s = {0.0, 0.0, 0.0};
                    for (int64_t n = 0; n < m.batch; ++n)
                      moments_add(&s, x + m.offset(n, c), m.pixels);
                    mean[c] = (float)mean_of(s);
                    variance[c] = (float)(s.squares / s.count);
                    const float scale = scale_of(weight[c], s.squares / s.count, eps);
                    for (int64_t n = 0; n < m.batch; ++n)
                      normalize_run(x + m.offset(n, c), y + m.offset(n, c), m.pixels, mean[c],
                                    scale, bias[c]);
                  }
                });
    return 0;
  }
  const Lanes l = lanes_of(m, Blocked);
  for_tiles(ctx, m, l, [&](int64_t tile, vtail live) {
    float means[VF], variances[VF];
    lane_moments(l, tile, Blocked ? vtail_of(VF) : live, x, means, variances);
    const vf center = vload(means), spread = vload(variances);
    set_channel(mean, tile, live, center);
    set_channel(variance, tile, live, spread);
    const vf scale = scale_of(channel(weight, tile, live), spread, eps, live);
    normalize_lanes(m, l, tile, Blocked, live, x, y, center, scale, channel(bias, tile, live));
  });
  return 0;
}

struct LaneSums {
  double sum[VF], product[VF];
};

void lane_gradient_sums(const Lanes &l, int64_t tile, vtail mask, const float *x, const float *g,
                        vf center, LaneSums *to) {
  for (int i = 0; i < VF; ++i) to->sum[i] = to->product[i] = 0.0;
  for (int64_t o = 0; o < l.outer; ++o) {
    const int64_t base = o * l.outer_stride + tile * l.tile_stride;
    for (int64_t at = 0; at < l.rows; at += 256) {
      const int64_t end = l.rows - at < 256 ? l.rows : at + 256;
      vf sum = vzero(), product = vzero();
      for (int64_t r = at; r < end; ++r) {
        const vf v = vload_tail(g + base + r * l.stride, mask);
        sum = vadd(sum, v);
        product = vfma(v, vsub(vload_tail(x + base + r * l.stride, mask), center), product);
      }
      float sums[VF], products[VF];
      vstore(sums, sum);
      vstore(products, product);
      for (int i = 0; i < VF; ++i) {
        to->sum[i] += sums[i];
        to->product[i] += products[i];
      }
    }
  }
}

// dx = w s (g - mean(g) - (x - mean) s^2 mean(g (x - mean))) with s = 1 / sqrt(var + eps), as
// coefficients: dx = a g + b (x - mean) + c. A channel of no elements has no variance, and a weight
// that met none no gradient.
struct Coefficients {
  float a, b, c, dweight, dbias;
};

Coefficients coefficients_of(double weight, double variance, double eps, double sum, double product,
                             double count) {
  const double s = 1.0 / __builtin_sqrt(variance + eps);
  const double a = weight * s;
  return {(float)a, (float)(-a * s * s * product / count), (float)(-a * sum / count),
          count > 0.0 ? (float)(product * s) : 0.0f, (float)sum};
}

TY_INLINE vf gradient_of(vf x, vf g, vf center, vf a, vf b, vf c) {
  return vfma(a, g, vfma(b, vsub(x, center), c));
}

void gradient_run(const float *x, const float *g, float *dx, int64_t n, float center,
                  const Coefficients &k) {
  const vf m = vset1(center), a = vset1(k.a), b = vset1(k.b), c = vset1(k.c);
  int64_t i = 0;
  for (; i + VF <= n; i += VF) vstore(dx + i, gradient_of(vload(x + i), vload(g + i), m, a, b, c));
  if (i < n) {
    const vtail t = vtail_of(n - i);
    vstore_tail(dx + i, gradient_of(vload_tail(x + i, t), vload_tail(g + i, t), m, a, b, c), t);
  }
}

struct Backward {
  const float *x, *weight, *mean, *variance, *g;
  float *dx, *dweight, *dbias;
  double eps;
};

void backward_channel(const Image &m, const Backward &k, int64_t c) {
  double sum = 0.0, product = 0.0;
  for (int64_t n = 0; n < m.batch; ++n) {
    const int64_t at = m.offset(n, c);
    gradient_sums(k.x + at, k.g + at, m.pixels, k.mean[c], &sum, &product);
  }
  const Coefficients f =
      coefficients_of(k.weight[c], k.variance[c], k.eps, sum, product, m.count());
  k.dweight[c] = f.dweight;
  k.dbias[c] = f.dbias;
  for (int64_t n = 0; n < m.batch; ++n) {
    const int64_t at = m.offset(n, c);
    gradient_run(k.x + at, k.g + at, k.dx + at, m.pixels, k.mean[c], f);
  }
}

void backward_tile(const Image &m, const Lanes &l, const Backward &k, int64_t tile, vtail live,
                   bool blocked) {
  const vtail mask = blocked ? vtail_of(VF) : live;
  const vf center = channel(k.mean, tile, live);
  LaneSums sums;
  lane_gradient_sums(l, tile, mask, k.x, k.g, center, &sums);
  float a[VF] = {}, b[VF] = {}, c[VF] = {};
  for (int64_t i = 0; i < VF && tile * VF + i < m.channels; ++i) {
    const int64_t at = tile * VF + i;
    const Coefficients f = coefficients_of(k.weight[at], k.variance[at], k.eps, sums.sum[i],
                                           sums.product[i], m.count());
    a[i] = f.a;
    b[i] = f.b;
    c[i] = f.c;
    k.dweight[at] = f.dweight;
    k.dbias[at] = f.dbias;
  }
  const vf va = vload(a), vb = vload(b), vc = vload(c);
  with_lanes(m, tile, blocked, live, [&](auto lanes) {
    for_vectors(l, tile, [&](int64_t at) {
      const vf x = lanes.load(k.x + at), g = lanes.load(k.g + at);
      lanes.store(k.dx + at, gradient_of(x, g, center, va, vb, vc));
    });
  });
}

// inputs: x, weight, mean, var, g; outputs: dx, dweight, dbias
template <bool Blocked>
int batch_norm_backward(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                        const ty_attrs *raw, void *) {
  const Image m = image_of(inputs[0]);
  const Backward k = {static_cast<const float *>(inputs[0].data),
                      static_cast<const float *>(inputs[1].data),
                      static_cast<const float *>(inputs[2].data),
                      static_cast<const float *>(inputs[3].data),
                      static_cast<const float *>(inputs[4].data),
                      static_cast<float *>(outputs[0].data),
                      static_cast<float *>(outputs[1].data),
                      static_cast<float *>(outputs[2].data),
                      reinterpret_cast<const ty_batch_norm_backward_attrs *>(raw)->eps};
  if (!Blocked && m.pixels != 1) {
    ty_parallel(ctx, m.channels, NORM_GRAIN / (m.batch * m.pixels + 1) + 1,
                [&](int64_t begin, int64_t end, int32_t) {
                  for (int64_t c = begin; c < end; ++c) backward_channel(m, k, c);
                });
    return 0;
  }
  const Lanes l = lanes_of(m, Blocked);
  for_tiles(ctx, m, l,
            [&](int64_t tile, vtail live) { backward_tile(m, l, k, tile, live, Blocked); });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(batch_norm, TY_KERNEL(batch_norm<false>, "batch_norm_f32", "planes"),
                  TY_KERNEL(batch_norm<true>, "batch_norm_f32", "blocked"),
                  TY_KERNEL(batch_norm_train<false>, "batch_norm_train_f32", "planes"),
                  TY_KERNEL(batch_norm_train<true>, "batch_norm_train_f32", "blocked"),
                  TY_KERNEL(batch_norm_backward<false>, "batch_norm_backward_f32", "planes"),
                  TY_KERNEL(batch_norm_backward<true>, "batch_norm_backward_f32", "blocked"))

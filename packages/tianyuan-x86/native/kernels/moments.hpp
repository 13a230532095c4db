// Sums, means and variances of float32 runs: blocks in float lanes, blocks joined in double.
#pragma once

#include "simd.hpp"

namespace TY_ISA {

static constexpr int64_t MOMENT_BLOCK = 2048;

// Count, mean and sum of squared deviations, joined as by Chan, Golub and LeVeque (1979).
struct Moments {
  double count, mean, squares;
};

TY_INLINE void moments_join(Moments *m, double count, double mean, double squares) {
  const double total = m->count + count, delta = mean - m->mean;
  if (total == 0.0) return;
  m->squares += squares + delta * delta * m->count * count / total;
  m->mean += delta * count / total;
  m->count = total;
}

// Sum of f(x[i]) over at most MOMENT_BLOCK elements; lanes behind the end do not count.
template <class F>
TY_INLINE double block_sum(const float *x, int64_t n, const F &f) {
  vf a = vzero(), b = vzero();
  int64_t i = 0;
  for (; i + 2 * VF <= n; i += 2 * VF) {
    a = vadd(a, f(vload(x + i)));
    b = vadd(b, f(vload(x + i + VF)));
  }
  if (i + VF <= n) {
    a = vadd(a, f(vload(x + i)));
    i += VF;
  }
  if (i < n) {
    const vtail t = vtail_of(n - i);
    b = vadd(b, vselect(vtail_mask(t), f(vload_tail(x + i, t)), vzero()));
  }
  return vhsum(vadd(a, b));
}

TY_INLINE void moments_add(Moments *m, const float *x, int64_t n) {
  for (int64_t at = 0; at < n; at += MOMENT_BLOCK) {
    const int64_t block = n - at < MOMENT_BLOCK ? n - at : MOMENT_BLOCK;
    const double mean = block_sum(x + at, block, [](vf v) { return v; }) / (double)block;
    const vf center = vset1((float)mean);
    const double squares = block_sum(x + at, block, [center](vf v) {
      const vf d = vsub(v, center);
      return vmul(d, d);
    });
    // The center was rounded to float; its square is taken back.
    const double off = mean - (double)(float)mean;
    moments_join(m, (double)block, mean, squares - off * off * (double)block);
  }
}

// Sums of g and of g * (x - center).
TY_INLINE void gradient_sums(const float *x, const float *g, int64_t n, float center, double *sum,
                             double *product) {
  const vf c = vset1(center);
  for (int64_t at = 0; at < n; at += MOMENT_BLOCK) {
    const int64_t end = n - at < MOMENT_BLOCK ? n : at + MOMENT_BLOCK;
    vf s = vzero(), p = vzero();
    int64_t i = at;
    for (; i + VF <= end; i += VF) {
      const vf v = vload(g + i);
      s = vadd(s, v);
      p = vfma(v, vsub(vload(x + i), c), p);
    }
    if (i < end) {
      const vtail t = vtail_of(end - i);
      const vf v = vload_tail(g + i, t);
      s = vadd(s, v);
      p = vfma(v, vsub(vload_tail(x + i, t), c), p);
    }
    *sum += vhsum(s);
    *product += vhsum(p);
  }
}

// y = (x - center) * scale + shift.
TY_INLINE void normalize_run(const float *x, float *y, int64_t n, float center, float scale,
                             float shift) {
  const vf c = vset1(center), s = vset1(scale), b = vset1(shift);
  int64_t i = 0;
  for (; i + VF <= n; i += VF) vstore(y + i, vfma(vsub(vload(x + i), c), s, b));
  if (i < n) {
    const vtail t = vtail_of(n - i);
    vstore_tail(y + i, vfma(vsub(vload_tail(x + i, t), c), s, b), t);
  }
}

}  // namespace TY_ISA

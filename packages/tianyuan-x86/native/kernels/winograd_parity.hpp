// The one-dimensional transforms of Winograd convolution of 3 taps with stride 2. Taps 0 and 2 meet
// even samples only, where they are F(M, 2): Toom-Cook at M finite points and infinity. Tap 1 meets
// odd samples, which are multiplied as they are, with one weight for all.
#pragma once

#include "winograd_transform.hpp"

namespace TY_ISA {
namespace {

// F(2, 2) at 0, 1 and infinity: sums only.
TY_INLINE void transform_even(const vf (&e)[3], vf *v) {
  v[0] = vsub(e[1], e[0]);
  v[1] = e[1];
  v[2] = vsub(e[2], e[1]);
}

TY_INLINE void transform_pair(const vf *m, vf (&y)[2]) {
  y[0] = vadd(m[0], m[1]);
  y[1] = vadd(m[1], m[2]);
}

// F(4, 2) at two pairs of points and infinity. They are short in binary, and near 1, so that little
// is cancelled.
constexpr float EVEN_POINTS[2] = {0.5f, 1.25f};

TY_INLINE void transform_even(const vf (&e)[5], vf *v) {
  constexpr float p[2] = {EVEN_POINTS[0] * EVEN_POINTS[0], EVEN_POINTS[1] * EVEN_POINTS[1]};
  TY_UNROLLED for (int i = 0; i < 2; ++i) {
    const vf other = vset1(p[1 - i]), point = vset1(EVEN_POINTS[i]);
    const vf even = vfnma(other, e[0], e[2]), odd = vfnma(other, e[1], e[3]);
    v[2 * i] = vfma(point, even, odd);
    v[2 * i + 1] = vfnma(point, even, odd);
  }
  v[4] = vfma(vset1(p[0] * p[1]), e[0], vfnma(vset1(p[0] + p[1]), e[2], e[4]));
}

TY_INLINE void transform_pair(const vf *m, vf (&y)[4]) {
  const vf sum[2] = {vadd(m[0], m[1]), vadd(m[2], m[3])};
  const vf difference[2] = {vsub(m[0], m[1]), vsub(m[2], m[3])};
  float power[2] = {1.0f, 1.0f};
  TY_UNROLLED for (int k = 0; k < 4; ++k) {
    const vf *terms = k % 2 ? difference : sum;
    const vf first = k == 0   ? terms[0]
                     : k == 3 ? vfma(vset1(power[0]), terms[0], m[4])
                              : vmul(vset1(power[0]), terms[0]);
    y[k] = k == 0 ? vadd(first, terms[1]) : vfma(vset1(power[1]), terms[1], first);
    power[0] *= EVEN_POINTS[0];
    power[1] *= EVEN_POINTS[1];
  }
}

// Rows of G are [1, 0, p] / N(p) with N(p) the product of p's distances from the other points, and
// the taps at infinity and between.
template <int M>
constexpr KernelMatrix<M + 2, 3> parity_kernel();

template <>
constexpr KernelMatrix<4, 3> parity_kernel<2>() {
  return {{{-1.0, 0.0, 0.0}, {1.0, 0.0, 1.0}, {0.0, 0.0, 1.0}, {0.0, 1.0, 0.0}}};
}

template <>
constexpr KernelMatrix<6, 3> parity_kernel<4>() {
  KernelMatrix<6, 3> g = {};
  for (int i = 0; i < 2; ++i) {
    const double p = EVEN_POINTS[i], q = EVEN_POINTS[1 - i], n = 2.0 * p * (p * p - q * q);
    g.row[2 * i][0] = 1.0 / n;
    g.row[2 * i + 1][0] = -1.0 / n;
    g.row[2 * i][2] = g.row[2 * i + 1][2] = p / n;
  }
  g.row[4][2] = g.row[5][1] = 1.0;
  return g;
}

// Three taps of stride 2 along an axis, in the terms of UnitStride. Odd samples come last and are
// of use to an output each.
template <int M>
struct StrideTwo {
  enum { OUTPUTS = M, SIZE = 2 * M + 1, STEP = 2 * M, WEIGHTS = M + 2, LEVELS = M };
  static constexpr int level(int position) {
    return position < M ? 0 : position == M ? M - 1 : position - M - 1;
  }
  static constexpr int needs(int level) { return level + 1; }
  static constexpr int weight(int position) { return position <= M ? position : M + 1; }
  TY_INLINE void input(const vf *d, vf *v) {
    vf even[M + 1];
    TY_UNROLLED for (int i = 0; i <= M; ++i) even[i] = d[2 * i];
    transform_even(even, v);
    TY_UNROLLED for (int i = 0; i < M; ++i) v[M + 1 + i] = d[2 * i + 1];
  }
  TY_INLINE void output(const vf *m, vf *y) {
    vf even[M];
    transform_pair(m, even);
    TY_UNROLLED for (int i = 0; i < M; ++i) y[i] = vadd(even[i], m[M + 1 + i]);
  }
  static constexpr KernelMatrix<WEIGHTS, 3> kernel() { return parity_kernel<M>(); }
};

}  // namespace
}  // namespace TY_ISA

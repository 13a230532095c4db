// The one-dimensional transforms by which Winograd's method reaches a convolution of seven taps and
// stride two. Its four even taps meet even samples only, its three odd taps odd samples, so it is
// the sum of two convolutions of stride one: F(4, 4) and F(4, 3), by Toom-Cook at the same three
// pairs of points +-p, the first at infinity too. Products at a common point have a common sum.
#pragma once

#include "winograd_kernel.hpp"

namespace TY_ISA {
namespace {

enum {
  STRIDED_TAPS = 7,
  STRIDED_OUTPUTS = 4,                               // of a tile, along an axis
  STRIDED_STEP = 2 * STRIDED_OUTPUTS,                // samples between tiles
  STRIDED_POINTS = 7,                                // three pairs and infinity, which is the last
  STRIDED_FINITE = STRIDED_POINTS - 1,               // those of the odd taps
  STRIDED_SAMPLES = STRIDED_POINTS + STRIDED_FINITE  // that a tile reads, even ones first
};

struct StridedPoints {
  float p, square_sum, square_product;  // of the other two points
};

// The points are those of winograd_first.py. What transforms images follows from them exactly.
constexpr double STRIDED_PAIRS[3] = {1.0, 2.0, 0.25};

constexpr StridedPoints strided_point(int i) {
  const double a = STRIDED_PAIRS[(i + 1) % 3], b = STRIDED_PAIRS[(i + 2) % 3];
  return {static_cast<float>(STRIDED_PAIRS[i]), static_cast<float>(a * a + b * b),
          static_cast<float>(a * a * b * b)};
}

// v = B^T d of six samples at the finite points: coefficients of prod (t - q) over the others. For
// p and a^2, b^2 of the other pairs that is (t + p) (t^2 - a^2) (t^2 - b^2), and t - p for -p.
TY_INLINE void strided_input(const vf *d, vf *v) {
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) {
    const StridedPoints s = strided_point(i);
    const vf sum = vset1(s.square_sum), product = vset1(s.square_product);
    const vf odd = vfma(product, d[1], vfnma(sum, d[3], d[5]));
    const vf even = vfma(product, d[0], vfnma(sum, d[2], d[4]));
    v[2 * i] = s.p == 1.0f ? vadd(odd, even) : vfma(vset1(s.p), even, odd);
    v[2 * i + 1] = s.p == 1.0f ? vsub(odd, even) : vfnma(vset1(s.p), even, odd);
  }
}

// The same at infinity, of seven samples: prod (t^2 - p^2) over all pairs.
TY_INLINE vf strided_input_at_infinity(const vf *d) {
  constexpr StridedPoints s = strided_point(0);
  constexpr float p = s.p * s.p;
  const vf sum = vset1(s.square_sum + p);
  const vf mixed = vset1(s.square_product + p * s.square_sum);
  const vf product = vset1(p * s.square_product);
  return vfnma(product, d[0], vfma(mixed, d[2], vfnma(sum, d[4], d[6])));
}

// y = A^T m: powers of the points.
TY_INLINE void strided_output(const vf *m, vf *y) {
  vf sum[3], difference[3];
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) {
    sum[i] = vadd(m[2 * i], m[2 * i + 1]);
    difference[i] = vsub(m[2 * i], m[2 * i + 1]);
  }
  y[0] = sum[0];
  y[1] = difference[0];
  y[2] = sum[0];
  y[3] = vadd(difference[0], m[STRIDED_FINITE]);
#pragma GCC unroll 2
  for (int i = 1; i < 3; ++i) {
    const float p = strided_point(i).p;
    y[0] = vadd(y[0], sum[i]);
    y[1] = vfma(vset1(p), difference[i], y[1]);
    y[2] = vfma(vset1(p * p), sum[i], y[2]);
    y[3] = vfma(vset1(p * p * p), difference[i], y[3]);
  }
}

// G of seven taps: even ones at all points, then odd ones at the finite ones. Rows are powers of p
// over the product of p's distances from the other finite points, 2 p (p^2 - a^2) (p^2 - b^2).
constexpr KernelMatrix<STRIDED_SAMPLES, STRIDED_TAPS> strided_kernel() {
  KernelMatrix<STRIDED_SAMPLES, STRIDED_TAPS> g = {};
  for (int i = 0; i < STRIDED_FINITE; ++i) {
    const double whole = STRIDED_PAIRS[i / 2], p = i % 2 ? -whole : whole;
    double power = 1.0 / (2.0 * p);
    for (int j = 0; j < 3; ++j)
      if (j != i / 2) power /= p * p - STRIDED_PAIRS[j] * STRIDED_PAIRS[j];
    for (int k = 0; k < STRIDED_TAPS; k += 2, power *= p) {
      g.row[i][k] = power;
      if (k + 1 < STRIDED_TAPS) g.row[STRIDED_POINTS + i][k + 1] = power;
    }
  }
  g.row[STRIDED_FINITE][STRIDED_TAPS - 1] = 1.0;
  return g;
}

static_assert(STRIDED_PAIRS[0] == 1.0, "strided_output leaves the powers of the first pair out");

}  // namespace
}  // namespace TY_ISA

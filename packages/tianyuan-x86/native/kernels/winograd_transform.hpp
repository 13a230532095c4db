// The one-dimensional transforms of Winograd convolution F(M, 3): Toom-Cook at 0, at pairs +-p and
// at infinity. After Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016; the
// matrices follow from the points alone, so one template serves every M.
#pragma once

#include "winograd_kernel.hpp"

// Loops whose indices are constants once unrolled. Sanitised code of that length would take many
// minutes to compile.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TY_UNROLLED
#else
#define TY_UNROLLED _Pragma("GCC unroll 9")
#endif

namespace TY_ISA {
namespace {

// Points of F(M, 3): M + 1 finite ones, 0 and PAIRS pairs +-p. They keep the powers in the output
// transform, and so the cancellation, small.
template <int M>
struct Points;
template <>
struct Points<2> {
  enum { PAIRS = 1 };
  static constexpr double p[1] = {1.0};
};
template <>
struct Points<4> {
  enum { PAIRS = 2 };
  static constexpr double p[2] = {0.70710678118654752440, 1.41421356237309504880};
};
template <>
struct Points<6> {
  enum { PAIRS = 3 };
  static constexpr double p[3] = {1.0, 0.5, 2.0};
};

// Elementary symmetric functions of the squared points, of all (row PAIRS) or all but one:
// prod (t - p^2) = sum over k of (-1)^k e(k) t^(count - k), signs included here.
struct Symmetric {
  float e[4][4];
};

template <int M>
constexpr Symmetric symmetric_of() {
  Symmetric found = {};
  for (int without = 0; without <= Points<M>::PAIRS; ++without) {
    double e[4] = {1.0, 0.0, 0.0, 0.0};
    for (int i = 0; i < Points<M>::PAIRS; ++i) {
      if (i == without) continue;
      for (int j = 3; j > 0; --j) e[j] -= e[j - 1] * Points<M>::p[i] * Points<M>::p[i];
    }
    for (int k = 0; k < 4; ++k) found.e[without][k] = static_cast<float>(e[k]);
  }
  return found;
}

// sum over k of e(k) d[top - 2 k], for polynomials of `degree` in the square.
template <int M>
TY_INLINE vf square_polynomial(const vf *d, int top, int degree, int without) {
  constexpr Symmetric symmetric = symmetric_of<M>();
  vf sum = d[top];
  TY_UNROLLED for (int k = 1; k <= degree; ++k) {
    const float e = symmetric.e[without][k];
    sum = e == 1.0f    ? vadd(sum, d[top - 2 * k])
          : e == -1.0f ? vsub(sum, d[top - 2 * k])
                       : vfma(vset1(e), d[top - 2 * k], sum);
  }
  return sum;
}

// v = B^T d over M + 2 vectors: coefficients of the products of all points but one.
template <int M>
TY_INLINE void transform_input(const vf *d, vf *v) {
  const int pairs = Points<M>::PAIRS;
  v[0] = square_polynomial<M>(d, M, pairs, pairs);
  TY_UNROLLED for (int i = 0; i < pairs; ++i) {
    const vf even = square_polynomial<M>(d, M, pairs - 1, i);
    const vf odd = square_polynomial<M>(d, M - 1, pairs - 1, i);
    const float p = static_cast<float>(Points<M>::p[i]);
    v[1 + 2 * i] = p == 1.0f ? vadd(even, odd) : vfma(vset1(p), odd, even);
    v[2 + 2 * i] = p == 1.0f ? vsub(even, odd) : vfnma(vset1(p), odd, even);
  }
  v[M + 1] = square_polynomial<M>(d, M + 1, pairs, pairs);
}

// Powers of the points, by pair.
template <int M>
struct Powers {
  float p[Points<M>::PAIRS][M];
};

template <int M>
constexpr Powers<M> powers_of() {
  Powers<M> found = {};
  for (int i = 0; i < Points<M>::PAIRS; ++i) {
    double power = 1.0;
    for (int k = 0; k < M; ++k, power *= Points<M>::p[i]) found.p[i][k] = static_cast<float>(power);
  }
  return found;
}

// y = A^T m over M vectors: powers of the points.
template <int M>
TY_INLINE void transform_output(const vf *m, vf *y) {
  constexpr int pairs = Points<M>::PAIRS;
  constexpr Powers<M> powers = powers_of<M>();
  vf sum[pairs], difference[pairs];
  TY_UNROLLED for (int i = 0; i < pairs; ++i) {
    sum[i] = vadd(m[1 + 2 * i], m[2 + 2 * i]);
    difference[i] = vsub(m[1 + 2 * i], m[2 + 2 * i]);
  }
  TY_UNROLLED for (int k = 0; k < M; ++k) {
    const vf *terms = k % 2 ? difference : sum;
    vf total = k == 0 ? m[0] : k == M - 1 ? m[M + 1] : vzero();
    const bool begun = k == 0 || k == M - 1;
    TY_UNROLLED for (int i = 0; i < pairs; ++i) {
      const float p = powers.p[i][k];
      if (i == 0 && !begun)
        total = p == 1.0f ? terms[i] : vmul(vset1(p), terms[i]);
      else
        total = p == 1.0f ? vadd(total, terms[i]) : vfma(vset1(p), terms[i], total);
    }
    y[k] = total;
  }
}

// Rows of G are [1, p, p^2] / N(p) with N(p) the product of p's distances from the other finite
// points, which is the same for p and -p.
template <int M>
constexpr KernelMatrix<M + 2, 3> unit_kernel() {
  KernelMatrix<M + 2, 3> g = {};
  double at_zero = 1.0;
  for (int i = 0; i < Points<M>::PAIRS; ++i) {
    const double p = Points<M>::p[i];
    double n = 2.0 * p * p;
    for (int j = 0; j < Points<M>::PAIRS; ++j)
      if (j != i) n *= p * p - Points<M>::p[j] * Points<M>::p[j];
    for (int k = 0; k < 3; ++k) {
      const double power = k == 0 ? 1.0 : k == 1 ? p : p * p;
      g.row[1 + 2 * i][k] = power / n;
      g.row[2 + 2 * i][k] = (k == 1 ? -power : power) / n;
    }
    at_zero *= -p * p;
  }
  g.row[0][0] = 1.0 / at_zero;
  g.row[M + 1][2] = 1.0;
  return g;
}

// F(M, 3) along an axis: OUTPUTS from SIZE samples, the next tile STEP samples further, by products
// at SIZE positions with WEIGHTS different weights. Positions of a level have a use where at least
// needs(level) outputs are kept: infinity for the last output only.
template <int M>
struct UnitStride {
  enum { OUTPUTS = M, SIZE = M + 2, STEP = M, WEIGHTS = M + 2, LEVELS = 2 };
  static constexpr int level(int position) { return position == M + 1; }
  static constexpr int needs(int level) { return level ? M : 1; }
  static constexpr int weight(int position) { return position; }
  TY_INLINE void input(const vf *d, vf *v) { transform_input<M>(d, v); }
  TY_INLINE void output(const vf *m, vf *y) { transform_output<M>(m, y); }
  static constexpr KernelMatrix<WEIGHTS, 3> kernel() { return unit_kernel<M>(); }
};

}  // namespace
}  // namespace TY_ISA

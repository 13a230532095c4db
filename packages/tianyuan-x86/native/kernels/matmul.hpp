// General matrix product for one thread, for whatever kernel reduces its work to it.
#pragma once

#include "epilogue.hpp"
#include "tile.hpp"

namespace TY_ISA {

// A step of gradient descent (sgd_update) for a parameter in the form of a product's result: the
// new parameter takes the place of the result, and the gradient is never written down. Instead of
// bias, residual and activation.
struct Descent {
  const float *param, *velocity;  // velocity: NULL without momentum
  float *new_velocity;
  float rate, momentum, decay;
  bool nesterov;
};

// c = activation(a b + bias + residual); distances in floats. The columns of c and of residual,
// which has the form of c, are contiguous.
struct Gemm {
  int64_t m, n, k;
  const float *a;
  int64_t a_row, a_step;
  const float *b;
  int64_t b_step, b_column;
  const float *packed;  // instead of `b`: [panel of TILE_LANES columns][k][column], or NULL
  float *c;
  int64_t c_row;
  const float *bias;      // n values, or NULL
  const float *residual;  // or NULL
  Epilogue epilogue;
  const Descent *update;  // c = a b is a gradient, no more than a step on the way, or NULL
};

// c = a b of one row where b is packed, without bias, residual and activation.
void multiply_row(const Gemm &g);

// Floats of workspace that gemm needs; also enough for every part of the product.
int64_t gemm_workspace(int64_t m, int64_t n, int64_t k);

// The same of a product that updates a parameter.
int64_t descent_workspace(int64_t m, int64_t n, int64_t k);

void gemm(const Gemm &g, float *workspace);

}  // namespace TY_ISA

// Products by one level of Strassen's method in Winograd's form (Strassen 1969, Winograd 1971):
// seven products of quarters instead of eight.
#pragma once

#include "epilogue.hpp"
#include "tile.hpp"

namespace TY_ISA {

// Rows of a block and terms of a block, as in src/tianyuan_x86/kernels/strassen.py.
enum { STRASSEN_ROWS = 24 * TILE_ROWS, STRASSEN_TERMS = 768 };

// c = activation(a b + bias + residual) of one matrix; m and k are even, n of whole pairs of
// panels.
struct Strassen {
  int64_t m, n, k;
  const float *a;  // rows without gaps
  const float *b;  // [panel of TILE_LANES columns][k][column]
  float *c;
  const float *bias, *residual;  // or NULL
  Epilogue epilogue;
};

// Floats of workspace that a call takes.
int64_t strassen_workspace(int64_t m, int64_t k);

// Rows [row, row + rows) with those `lower` further, which they meet, and pairs of panels
// [first, last).
struct StrassenPiece {
  int64_t row, rows, lower, first, last;
};

void multiply_strassen(const Strassen &s, const StrassenPiece &piece, float *workspace);

}  // namespace TY_ISA

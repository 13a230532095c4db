// Products by one level of Strassen's method in Winograd's form (Strassen 1969, Winograd 1971):
// seven products of quarters instead of eight. With S and T, sums of quarters of a and of b,
//
//   s1 = a21 + a22    t1 = b12 - b11    P = a11 b11           c11 = P + a12 b21
//   s2 = s1 - a11     t2 = b22 - t1     W = s1 t1             P = P + s2 t2
//   s3 = a21 - a11    t3 = b12 - b22    c12 = P + W + s4 b22  P = P + s3 t3
//   s4 = a12 - s2     t4 = b21 - t2     c21 = P + a22 t4      c22 = P + W
//
// T is made for two panels at a time, each sum while the product before it reads what is
// subtracted: there it hides behind multiplications.
//
// Rows of a meet in S, and may be of different samples. An infinity would reach the other row, and
// so would the rounding errors of much larger values. So S is used only where no row is much larger
// than the one that it meets; elsewhere the block takes eight ordinary products of the quarters.
//
// Where b is not packed beforehand, its panels are packed two at a time, and their columns are
// looked at in the same way: the pair takes ordinary products where they differ. Rows of a, of
// which a gradient's differ as much as samples do, are brought to one size by powers of two first.
#pragma once

#include "epilogue.hpp"
#include "kernel.hpp"
#include "tile.hpp"

namespace TY_ISA {

// Rows of a block and terms of a block, as in src/tianyuan_x86/kernels/strassen.py.
enum { STRASSEN_ROWS = 24 * TILE_ROWS, STRASSEN_TERMS = 768 };

// Largest magnitude of rows whose sums meet, and how many times another row's it may be.
constexpr float STRASSEN_MOST = 1e30f, STRASSEN_RATIO = 16.0f;

// Left and right operands, and where sums go: results, or P or W.
enum Left { A11, A12, S1, S2, S4, S3, A22, PRODUCTS, A21 = PRODUCTS, LEFTS };
enum Right { B11, B21, B12, B22, T1, T2, T3, T4, RIGHTS };
enum Target { TO_P, TO_W, TO_RESULT };

// A product: what its sums start from, where they go, to the results of the upper or the lower rows
// and of the left or the right columns, and which sum is made on the way: `difference` becomes
// `minuend` less the right operand.
struct Turn {
  Left left;
  Right right;
  bool from_p, plus_w;
  Target to;
  bool lower_rows, right_columns;
  bool makes;
  Right minuend, difference;
};

namespace {

// In order. The lower right results, P + W, are left to the end.
constexpr Turn TURNS[PRODUCTS] = {
    {A11, B11, false, false, TO_P, false, false, true, B12, T1},
    {A12, B21, true, false, TO_RESULT, false, false, false, B11, T1},
    {S1, T1, false, false, TO_W, false, false, true, B22, T2},
    {S2, T2, true, false, TO_P, false, false, true, B21, T4},
    {S4, B22, true, true, TO_RESULT, false, true, true, B12, T3},
    {S3, T3, true, false, TO_P, false, false, false, B11, T1},
    {A22, T4, true, false, TO_RESULT, true, false, false, B11, T1},
};

// The ordinary products.
constexpr Turn ORDINARY[] = {
    {A11, B11, false, false, TO_P, false, false, false, B11, T1},
    {A12, B21, true, false, TO_RESULT, false, false, false, B11, T1},
    {A11, B12, false, false, TO_P, false, false, false, B11, T1},
    {A12, B22, true, false, TO_RESULT, false, true, false, B11, T1},
    {A21, B11, false, false, TO_P, false, false, false, B11, T1},
    {A22, B21, true, false, TO_RESULT, true, false, false, B11, T1},
    {A21, B12, false, false, TO_P, false, false, false, B11, T1},
    {A22, B22, true, false, TO_RESULT, true, true, false, B11, T1},
};

}  // namespace

// c = activation(a b + bias + residual) of one matrix; m and k are even, n of whole pairs of
// panels.
struct Strassen {
  int64_t m, n, k;
  const float *a;  // rows without gaps
  const float *b;  // [panel of TILE_LANES columns][k][column], or NULL
  // Instead of packed panels, values as they lie, whose rows and columns may both be of samples.
  const float *plain;
  int64_t b_step, b_column;
  float *c;
  const float *bias, *residual;  // or NULL
  Epilogue epilogue;
};

// Floats of workspace that a call takes.
int64_t strassen_workspace(int64_t m, int64_t k, bool plain);

// Rows [row, row + rows) with those `lower` further, which they meet, of a block of rows that
// begins at `block`, and pairs of panels [first, last).
struct StrassenPiece {
  int64_t row, rows, block, lower, first, last;
};

void multiply_strassen(const Strassen &s, const StrassenPiece &piece, float *workspace);

}  // namespace TY_ISA

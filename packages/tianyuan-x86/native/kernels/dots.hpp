// Products of few rows with the transposed of a matrix, as dot products without packing.
#pragma once

#include "simd.hpp"

namespace TY_ISA {
namespace {

enum { DOTS = 4 };  // rows and columns of a tile of dot products

// Dot products of ROWS rows of a with up to DOTS rows of b; both contiguous along k.
template <int ROWS>
void dot_tile(const float *a, int64_t a_row, const float *b, int64_t b_row, int64_t k, int64_t cols,
              float *c, int64_t c_row) {
  const float *from[DOTS];
  for (int64_t j = 0; j < DOTS; ++j) from[j] = b + (j < cols ? j : 0) * b_row;
  vf sums[ROWS][DOTS];
#pragma GCC unroll 4
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < DOTS; ++j) sums[i][j] = vzero();
  int64_t at = 0;
  for (; at + VF <= k; at += VF) {
    vf right[DOTS];
#pragma GCC unroll 4
    for (int j = 0; j < DOTS; ++j) right[j] = vload(from[j] + at);
#pragma GCC unroll 4
    for (int i = 0; i < ROWS; ++i) {
      const vf left = vload(a + i * a_row + at);
#pragma GCC unroll 4
      for (int j = 0; j < DOTS; ++j) sums[i][j] = vfma(left, right[j], sums[i][j]);
    }
  }
  const vtail tail = vtail_of(k - at);
#pragma GCC unroll 4
  for (int j = 0; j < DOTS; ++j) {
    const vf right = vload_tail(from[j] + at, tail);
#pragma GCC unroll 4
    for (int i = 0; i < ROWS; ++i)
      sums[i][j] = vfma(vload_tail(a + i * a_row + at, tail), right, sums[i][j]);
  }
  for (int i = 0; i < ROWS; ++i)
    for (int j = 0; j < cols; ++j) c[i * c_row + j] = vhsum(sums[i][j]);
}

// c = a b' where packing would cost more than it saves.
inline void multiply_dots(const float *a, int64_t a_row, int64_t rows, const float *b,
                          int64_t b_row, int64_t cols, int64_t k, float *c, int64_t c_row) {
  for (int64_t j = 0; j < cols; j += DOTS) {
    const int64_t some = cols - j < DOTS ? cols - j : static_cast<int64_t>(DOTS);
    const float *right = b + j * b_row;
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4)
      dot_tile<4>(a + i * a_row, a_row, right, b_row, k, some, c + i * c_row + j, c_row);
    for (; i + 2 <= rows; i += 2)
      dot_tile<2>(a + i * a_row, a_row, right, b_row, k, some, c + i * c_row + j, c_row);
    if (i < rows)
      dot_tile<1>(a + i * a_row, a_row, right, b_row, k, some, c + i * c_row + j, c_row);
  }
}

}  // namespace
}  // namespace TY_ISA

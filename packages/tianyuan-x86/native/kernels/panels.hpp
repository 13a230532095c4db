// Packs panels of TILE_LANES columns, k-major, as the tile reads them.
#pragma once

#include "kernel.hpp"
#include "tile.hpp"

namespace TY_ISA {

// One panel of TILE_LANES columns whose rows lie contiguous in b, zeros behind the last column.
static inline void pack_b_rows(float *to, const float *b, int64_t b_step, int64_t cols,
                               int64_t depth) {
  const vtail tail0 = vtail_of(cols), tail1 = vtail_of(cols > VF ? cols - VF : 0);
  for (int64_t k = 0; k < depth; ++k) {
    const float *from = b + k * b_step;
    vstore(to + k * TILE_LANES, vload_tail(from, tail0));
    vstore(to + k * TILE_LANES + VF, cols > VF ? vload_tail(from + VF, tail1) : vzero());
  }
}

// The same from columns that lie contiguous in b.
static inline void pack_b_columns(float *to, const float *b, int64_t b_column, int64_t cols,
                                  int64_t depth) {
  for (int64_t j = 0; j < TILE_LANES; j += VF) {
    for (int64_t k = 0; k < depth; k += VF) {
      const int64_t some = depth - k < VF ? depth - k : static_cast<int64_t>(VF);
      vf block[VF];
      vload_columns(block, b + j * b_column + k, b_column, cols - j, some);
      for (int r = 0; r < some; ++r) vstore(to + (k + r) * TILE_LANES + j, block[r]);
    }
  }
}

}  // namespace TY_ISA

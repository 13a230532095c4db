// A product of rounded rows by a right operand that is packed in pairs, as
// [panel of 32 columns][ceil(k / 2)][32 columns] words.
#pragma once

#include "bf16.hpp"

namespace TY_ISA {

enum {
  PAIR_PANEL = 2 * VF,
  PAIR_STEP = 32  // terms that rows are filled up to
};

struct PairProduct {
  int64_t rows, n, k;
  const float *b, *bias, *residual;
  void *c;
  bool keeps;     // c is rows of pairs too, and has no residual
  int64_t c_row;  // values between rows of c
  Epilogue epilogue;
};

// Bytes of a row of pairs; more than a power of two, so that neighbours do not meet in a cache's
// sets.
TY_INLINE int64_t pair_row_bytes(int64_t k) { return ceil_div(2 * k, 64) * 64 + 64; }

// What all tiles of a panel share.
TY_INLINE PairTile panel_tile(const PairProduct &p, int64_t panel) {
  const int64_t first = panel * PAIR_PANEL;
  PairTile tile = {};
  tile.a_row = pair_row_bytes(p.k);
  tile.b = p.b + panel * ceil_div(p.k, 2) * PAIR_PANEL;
  tile.b_step = PAIR_PANEL;
  tile.b_next = VF;
  tile.bias = p.bias ? p.bias + first : nullptr;
  tile.y_row = p.c_row;
  tile.y_next = VF;
  tile.epilogue = p.epilogue;
  for (int v = 0; v < 2; ++v)
    tile.valid[v] = vtail_of(p.n - first > v * VF ? p.n - first - v * VF : 0);
  return tile;
}

// Lets a tile write rows from `row` on.
TY_INLINE void point_to(const PairProduct &p, int64_t row, int64_t panel, PairTile *tile) {
  const int64_t at = row * p.c_row + panel * PAIR_PANEL;
  tile->y = p.keeps ? static_cast<void *>(static_cast<element *>(p.c) + at)
                    : static_cast<void *>(static_cast<float *>(p.c) + at);
  tile->residual = p.residual ? p.residual + at : nullptr;
}

// Rows [begin, end) of `a` by one panel of columns.
void pair_panel_run(const PairProduct &p, const char *a, int64_t panel, int64_t begin, int64_t end);

}  // namespace TY_ISA

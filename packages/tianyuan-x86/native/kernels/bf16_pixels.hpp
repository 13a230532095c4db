// Runs of output pixels that a tile of pairs takes.
#pragma once

#include "bf16_conv.hpp"

namespace TY_ISA {
namespace {

// Pixels [x, x + width) of `halves` rows from y.
struct Pixels {
  int64_t y, x, width;
  int halves;
};

// Sets what all tiles of a pair of blocks share.
inline void begin_block(const ConvPlan &p, int64_t block, int vectors, PairTile *tile) {
  for (int v = 0; v < vectors; ++v) tile->valid[v] = vtail_of(p.o - (block + v) * VF);
  tile->bias = p.bias ? p.bias + block * VF : nullptr;
  tile->y_row = p.y_row * 2;
  tile->y_next = p.y_channel * 2;
  tile->epilogue = as_clip(p.epilogue);
}

inline void run_pixels(const ConvPlan &p, PairKind kind, int64_t image, int64_t block, int vectors,
                       const Pixels &s, PairTile *tile) {
  const int64_t at = image * p.y_image + block * p.y_channel + s.y * p.y_row + s.x * BLOCK_WORDS;
  tile->y = p.y + at;
  tile->residual = p.residual ? p.residual + at : nullptr;
  pair_tile_of(kind, s.halves, static_cast<int>(s.width * s.halves), vectors)(tile);
}

// Calls body with all pixels of rows [y0, y1) x columns [x0, x1): rows in tiles of nearly equal
// width, or two short rows per tile.
template <typename Body>
TY_INLINE void for_pixels(int64_t y0, int64_t y1, int64_t x0, int64_t x1, bool pairs_rows,
                          const Body &body) {
  const int64_t width = x1 - x0, tiles = ceil_div(width, TILE_ROWS);
  for (int64_t y = y0; y < y1; ++y) {
    if (pairs_rows && width <= TILE_ROWS / 2 && y + 1 < y1) {
      body(Pixels{y, x0, width, 2});
      ++y;
      continue;
    }
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t begin = t * width / tiles, end = (t + 1) * width / tiles;
      body(Pixels{y, x0 + begin, end - begin, 1});
    }
  }
}

}  // namespace
}  // namespace TY_ISA

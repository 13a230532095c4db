// Products of pairs in tiles of AMX: blocks of two tiles of rows by two of outputs.
//
// Denormal numbers count as zero, in operands and in sums.
#pragma once

#include "bf16_finish.hpp"
#include "tile_amx.hpp"

namespace TY_ISA {
namespace {

enum { BLOCK_ROWS = 2 * TILE_MAX_ROWS, BLOCK_SUMS = BLOCK_ROWS * 2 * VF };

// `count` rows in blocks of equal height, so that one configuration serves them: the last may begin
// with rows of the one before it.
struct TileBlocks {
  int64_t count, blocks, height, first;  // first: rows of a block's first tile
  int64_t begin(int64_t block) const {
    const int64_t at = block * height, last = count - height;
    return at < last ? at : last;
  }
};

inline TileBlocks tile_blocks(int64_t count) {
  const int64_t blocks = (count + BLOCK_ROWS - 1) / BLOCK_ROWS;
  const int64_t height = (count + blocks - 1) / blocks;
  return {count, blocks, height, height < TILE_MAX_ROWS ? height : int64_t{TILE_MAX_ROWS}};
}

// Tiles 0 to 3 are sums, 4 and 5 rows of `pairs` pairs, 6 and 7 outputs.
inline void configure(const TileBlocks &rows, int64_t pairs) {
  const int64_t second = rows.height - rows.first;
  TileConfig config;
  for (int v = 0; v < 2; ++v) {
    config.set(v, rows.first, TILE_ROW_BYTES);
    if (second > 0) config.set(2 + v, second, TILE_ROW_BYTES);
    config.set(6 + v, pairs, TILE_ROW_BYTES);
  }
  config.set(4, rows.first, 4 * pairs);
  if (second > 0) config.set(5, second, 4 * pairs);
  tile_configure(config);
}

// Multiplies rows from `a`, of which those of the second tile lie `second` bytes ahead, by `steps`
// tiles of outputs; at(i, &a, &b) moves to the operands of a step. `bias` has a value for each
// output; the sums come out as rows x VECTORS x 16.
template <int HEIGHT, int VECTORS, typename At>
TY_INLINE void multiply_steps(const PairTile *t, int64_t first, int64_t a_row, int64_t steps,
                              float *sums, const At &at) {
  // Rows at no distance are all the same.
  tile_load<0>(t->bias, 0);
  if (VECTORS == 2) tile_load<1>(t->bias + VF, 0);
  if (HEIGHT == 2) tile_load<2>(t->bias, 0);
  if (HEIGHT == 2 && VECTORS == 2) tile_load<3>(t->bias + VF, 0);
  const int64_t second = first * a_row, b_row = 4 * t->b_step;
  for (int64_t i = 0; i < steps; ++i) {
    const char *a;
    const float *b;
    at(i, &a, &b);
    tile_load<4>(a, a_row);
    tile_load<6>(b, b_row);
    tile_dot_bf16<0, 4, 6>();
    if (VECTORS == 2) {
      tile_load<7>(b + t->b_next, b_row);
      tile_dot_bf16<1, 4, 7>();
    }
    if (HEIGHT == 2) {
      tile_load<5>(a + second, a_row);
      tile_dot_bf16<2, 5, 6>();
      if (VECTORS == 2) tile_dot_bf16<3, 5, 7>();
    }
  }
  enum { ROW = VECTORS * VF };
  tile_store<0>(sums, 4 * ROW);
  if (VECTORS == 2) tile_store<1>(sums + VF, 4 * ROW);
  if (HEIGHT == 2) tile_store<2>(sums + first * ROW, 4 * ROW);
  if (HEIGHT == 2 && VECTORS == 2) tile_store<3>(sums + first * ROW + VF, 4 * ROW);
}

// Makes results of one row's sums, `at` values from y.
template <int KIND>
TY_INLINE void finish_row(const PairTile *t, const float *sums, int vectors, int64_t at) {
  for (int v = 0; v < vectors; ++v) {
    const vf sum = vload(sums + v * VF);
    if (t->epilogue.activation == ACT_CLIP)
      store<KIND>(t, sum, at + v * t->y_next, v);
    else
      store_smooth<KIND>(t, sum, at + v * t->y_next, v, gelu_table());
  }
}

// Fills `bias` with what the sums of the outputs start from, and lets the tile read it.
inline void pad_bias(PairTile *t, int vectors, float *bias) {
  for (int v = 0; v < vectors; ++v)
    vstore(bias + v * VF, t->bias ? vload_tail(t->bias + v * VF, t->valid[v]) : vzero());
  t->bias = bias;
}

}  // namespace
}  // namespace TY_ISA

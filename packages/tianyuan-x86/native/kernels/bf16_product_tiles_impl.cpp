// The product of pairs in tiles of AMX: blocks of rows by a panel at a time.
#include <string.h>

#include "bf16_matmul.hpp"
#include "bf16_tiles.hpp"

namespace TY_ISA {
namespace {

enum {
  STEP_PAIRS = PAIR_STEP / 2,
  STEP_BYTES = 2 * PAIR_STEP,
  STEP_WORDS = STEP_PAIRS * PAIR_PANEL
};

// Steps of a product: whole ones lie in the panel, the last one may be a copy.
struct Steps {
  int64_t whole, all, first, a_row;
  const float *last;
};

template <int HEIGHT, int VECTORS>
void multiply_rows(const PairTile *t, const Steps &s, float *sums) {
  multiply_steps<HEIGHT, VECTORS>(t, s.first, s.a_row, s.all, sums,
                                  [&](int64_t i, const char **a, const float **b) {
                                    *a = t->a + i * STEP_BYTES;
                                    *b = i < s.whole ? t->b + i * STEP_WORDS : s.last;
                                  });
}

typedef void (*Multiply)(const PairTile *, const Steps &, float *);
const Multiply multiplies[2][2] = {{multiply_rows<1, 1>, multiply_rows<1, 2>},
                                   {multiply_rows<2, 1>, multiply_rows<2, 2>}};

}  // namespace

void pair_panel_run(const PairProduct &p, const char *a, int64_t panel, int64_t begin,
                    int64_t end) {
  PairTile tile = panel_tile(p, panel);
  const int64_t pairs = ceil_div(p.k, 2), rest = pairs % STEP_PAIRS;
  const int vectors = p.n - panel * PAIR_PANEL > VF ? 2 : 1;
  const TileBlocks rows = tile_blocks(end - begin);
  alignas(64) float last[STEP_WORDS], sums[2][BLOCK_SUMS], bias[2 * VF];
  const Steps steps = {pairs / STEP_PAIRS, ceil_div(pairs, STEP_PAIRS), rows.first, tile.a_row,
                       last};
  if (rest > 0) {
    const size_t room = static_cast<size_t>(rest * PAIR_PANEL);
    memcpy(last, tile.b + steps.whole * STEP_WORDS, room * sizeof(float));
    memset(last + room, 0, sizeof last - room * sizeof(float));
  }
  pad_bias(&tile, vectors, bias);
  configure(rows, STEP_PAIRS);
  const Multiply multiply = multiplies[rows.height > rows.first][vectors - 1];
  for (int64_t i = 0; i < rows.blocks; ++i) {
    const int64_t at = rows.begin(i), first = begin + at;
    float *const found = sums[i % 2];
    tile.a = a + first * tile.a_row;
    multiply(&tile, steps, found);
    point_to(p, first, panel, &tile);
    const auto finish = p.keeps ? finish_row<PAIR_ROWS> : finish_row<PAIR_MATRIX>;
    for (int64_t row = i * rows.height - at; row < rows.height; ++row)
      finish(&tile, found + row * vectors * VF, vectors, row * tile.y_row);
  }
  tile_release();
}

}  // namespace TY_ISA

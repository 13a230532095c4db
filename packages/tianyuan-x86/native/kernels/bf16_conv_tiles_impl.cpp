// Direct convolution in tiles of AMX: blocks of positions by pairs of output blocks.
#include "bf16_items.hpp"
#include "bf16_pixels.hpp"
#include "bf16_tiles.hpp"

namespace TY_ISA {
namespace {

// A pixel of the copy has the channels of two blocks, as many as a row of a tile holds.
enum { PIXEL_WORDS = 2 * BLOCK_WORDS, PIXEL_BYTES = 4 * PIXEL_WORDS, FEWEST_ROWS = 26 };

// How an item is walked: row by row, or over all positions, which are pixels and what lies between
// two rows of them at the same distance. Positions are counted within a part.
struct Walk {
  int64_t parts, pitch, pixels;  // pitch: positions of a row, the first `pixels` of which count
  TileBlocks rows;
};

// Products of the same sums wait for each other, so that a low block takes no less than
// FEWEST_ROWS rows.
int64_t cycles_of(const TileBlocks &rows) {
  return rows.blocks * greater(rows.height, FEWEST_ROWS);
}

Walk walk_of(const ConvPlan &p, const Band &b, const Item &item) {
  const int64_t width = item.x1 - item.x0, lines = item.y1 - item.y0;
  const int64_t pitch = p.sh * b.row / PIXEL_WORDS;
  const TileBlocks row = tile_blocks(width), all = tile_blocks((lines - 1) * pitch + width);
  if (lines > 1 && cycles_of(all) < lines * cycles_of(row)) return {1, pitch, width, all};
  return {lines, width, width, row};
}

template <int HEIGHT, int VECTORS>
void multiply_pixels(const PairTile *t, int64_t first, float *sums) {
  multiply_steps<HEIGHT, VECTORS>(t, first, PIXEL_BYTES, t->n_segments, sums,
                                  [&](int64_t i, const char **a, const float **b) {
                                    *a = t->a + t->segments[i].a;
                                    *b = t->b + t->segments[i].b;
                                  });
}

typedef void (*Multiply)(const PairTile *, int64_t, float *);
const Multiply multiplies[2][2] = {{multiply_pixels<1, 1>, multiply_pixels<1, 2>},
                                   {multiply_pixels<2, 1>, multiply_pixels<2, 2>}};

// Stores the positions [at, end) that are pixels.
void finish_pixels(const PairTile *t, const Walk &walk, const float *sums, int vectors, int64_t at,
                   int64_t end) {
  int64_t row = at / walk.pitch, column = at % walk.pitch;
  for (; at < end; ++at, sums += vectors * VF) {
    if (column < walk.pixels)
      finish_row<PAIR_BLOCKS>(t, sums, vectors, row * t->y_row + column * VF);
    if (++column == walk.pitch) {
      column = 0;
      ++row;
    }
  }
}

void run_item(const Items &items, const Item &item, const float *origin) {
  const ConvPlan &p = items.p;
  const Walk walk = walk_of(p, items.band, item);
  const TileBlocks &rows = walk.rows;
  // What is multiplied next need not wait for what becomes results.
  alignas(64) float sums[2][BLOCK_SUMS], bias[2 * VF];
  int64_t turn = 0;
  PairTile tile = {};
  tile.segments = items.table;
  tile.n_segments = items.segments;
  tile.b_step = VF;
  tile.b_next = pair_weight_words(p);
  configure(rows, PIXEL_WORDS);
  for (int64_t block = item.o0; block < item.o1; block += TILE_VECTORS) {
    const int vectors = static_cast<int>(lesser(TILE_VECTORS, item.o1 - block));
    begin_block(p, block, vectors, &tile);
    pad_bias(&tile, vectors, bias);
    tile.b = p.weight + block * tile.b_next;
    const Multiply multiply = multiplies[rows.height > rows.first][vectors - 1];
    for (int64_t part = 0; part < walk.parts; ++part) {
      const float *from = origin + part * p.sh * items.band.row;
      const int64_t to = item.image * p.y_image + block * p.y_channel + (item.y0 + part) * p.y_row +
                         item.x0 * BLOCK_WORDS;
      tile.y = p.y + to;
      tile.residual = p.residual ? p.residual + to : nullptr;
      for (int64_t i = 0; i < rows.blocks; ++i, ++turn) {
        const int64_t begin = rows.begin(i), fresh = i * rows.height;
        float *const found = sums[turn % 2];
        tile.a = reinterpret_cast<const char *>(from) + begin * PIXEL_BYTES;
        multiply(&tile, rows.first, found);
        finish_pixels(&tile, walk, found + (fresh - begin) * vectors * VF, vectors, fresh,
                      begin + rows.height);
      }
    }
  }
  tile_release();
}

}  // namespace

int64_t pair_weight_words(const ConvPlan &p) {
  return planes_of<2>(p) * p.n_weights * PIXEL_WORDS * VF;
}

void pair_conv_run(const ty_ctx *ctx, const ConvPlan &p, float *workspace) {
  for_items<2>(ctx, p, workspace, run_item);
}

}  // namespace TY_ISA

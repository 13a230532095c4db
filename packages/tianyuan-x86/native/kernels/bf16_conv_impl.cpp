// Direct convolution by tiles of pairs: pairs of output blocks over runs of pixels.
#include "bf16_items.hpp"
#include "bf16_pixels.hpp"

namespace TY_ISA {
namespace {

enum { AHEAD_BYTES = 128 * 1024 };  // of two panels that are worth fetching ahead

void run_item(const Items &items, const Item &item, const float *origin) {
  const ConvPlan &p = items.p;
  const Band &b = items.band;
  PairTile tile = {};
  tile.segments = items.table;
  tile.n_segments = items.segments;
  tile.a_row = 4 * p.sh * b.row;
  tile.b_step = VF;
  tile.b_next = pair_weight_words(p);
  tile.ahead_step = 64;
  const bool small = tile.b_next * 4 * TILE_VECTORS <= AHEAD_BYTES;
  for (int64_t block = item.o0; block < item.o1; block += TILE_VECTORS) {
    const int vectors = static_cast<int>(lesser(TILE_VECTORS, item.o1 - block));
    begin_block(p, block, vectors, &tile);
    tile.b = p.weight + block * tile.b_next;
    // While the first tiles run, the next two panels come nearer, one a tile, if both pairs fit.
    int64_t fetched = block + TILE_VECTORS;
    for_pixels(item.y0, item.y1, item.x0, item.x1, true, [&](const Pixels &s) {
      tile.a = reinterpret_cast<const char *>(origin + (s.y - item.y0) * p.sh * b.row +
                                              (s.x - item.x0) * BLOCK_WORDS);
      const bool more = small && fetched < lesser(item.o1, block + 2 * TILE_VECTORS);
      tile.ahead =
          more ? reinterpret_cast<const char *>(p.weight + fetched * tile.b_next) : nullptr;
      ++fetched;
      run_pixels(p, PAIR_BLOCKS, item.image, block, vectors, s, &tile);
    });
  }
}

}  // namespace

int64_t pair_weight_words(const ConvPlan &p) {
  return planes_of<1>(p) * p.n_weights * BLOCK_WORDS * VF;
}

void pair_conv_run(const ty_ctx *ctx, const ConvPlan &p, float *workspace) {
  for_items<1>(ctx, p, workspace, run_item);
}

}  // namespace TY_ISA

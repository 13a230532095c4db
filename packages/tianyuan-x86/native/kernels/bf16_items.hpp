// Cuts a convolution of pairs into items: bands of source rows by runs of output blocks.
#pragma once

#include "bf16_conv.hpp"
#include "conv_band.hpp"

namespace TY_ISA {
namespace {

// Output pixels and blocks of channels of one image. The pixel that tap (min_y, min_x) meets at the
// first of them lies at `origin`.
struct Item {
  int64_t image, y0, y1, x0, x1, o0, o1;  // o in channel blocks
  const float *origin;
};

// What all items of a convolution share.
struct Items {
  const ConvPlan &p;
  Band band;
  const TileSegment *table;
  int64_t segments;
};

// Segments over (channel block, tap), in the order in which the weight lies in memory.
inline int64_t fill_table(TileSegment *table, const ConvPlan &p, const Band &b) {
  TileSegment *next = table;
  for (int64_t block = 0; block < ceil_div(p.c, VF); ++block)
    for (int64_t t = 0; t < p.n_taps; ++t, ++next) {
      next->a = 4 * (block * b.plane + tap_offset(p, b, p.taps[t]));
      next->b = (block * p.n_weights + p.taps[t].weight) * BLOCK_WORDS * VF;
      next->count = ceil_div(lesser(VF, p.c - block * VF), 2);
    }
  return next - table;
}

// Columns, rows and chunks of output blocks that one item takes.
struct Cut {
  int64_t cols, rows, chunks;
};

// A band has at most as many rows as its copy was planned for, so fewer are always right.
inline Cut cut_of(const ty_ctx *ctx, const ConvPlan &p, const Band &b, int64_t pairs) {
  Cut cut = {b.cols, b.rows, 1};
  const int64_t wanted = ctx->threads > 1 ? 4 * ctx->threads : 1;
  const auto items = [&] {
    return p.n * ceil_div(b.oh, cut.rows) * ceil_div(b.ow, cut.cols) * cut.chunks;
  };
  while (items() < wanted && b.flat && cut.cols > 4 * TILE_ROWS)
    cut.cols = ceil_div(cut.cols / 2, TILE_ROWS) * TILE_ROWS;
  while (items() < wanted && cut.chunks * 2 <= pairs) cut.chunks *= 2;
  while (items() < wanted && cut.rows > 2) cut.rows = ceil_div(cut.rows, 2);
  return cut;
}

inline int64_t table_words(int64_t c, int64_t taps) {
  const int64_t bytes = ceil_div(c, VF) * taps * static_cast<int64_t>(sizeof(TileSegment));
  return ceil_div(bytes, 64) * 16;
}

// Calls body(items, item) for all items, in parallel; the workspace is that of pair_conv_run.
template <typename Body>
inline void for_items(const ty_ctx *ctx, const ConvPlan &p, float *workspace, const Body &body) {
  if (p.n == 0 || p.o == 0 || p.oh <= 0 || p.ow <= 0) return;
  const Band b = band_of(p);
  const int64_t blocks = ceil_div(p.o, VF), pairs = ceil_div(blocks, TILE_VECTORS);
  const Cut cut = cut_of(ctx, p, b, pairs);
  TileSegment *table = reinterpret_cast<TileSegment *>(workspace);
  const int64_t segments = fill_table(table, p, b);
  const Items items = {p, b, table, segments};
  float *const scratch = workspace + table_words(p.c, p.n_taps);
  const int64_t per_slot = b.copied ? ceil_div(source_planes(p) * b.plane, 16) * 16 : 0;
  const int64_t y_bands = ceil_div(b.oh, cut.rows), x_bands = ceil_div(b.ow, cut.cols);
  const int64_t count = p.n * y_bands * x_bands * cut.chunks;
  ty_parallel(ctx, count, 1, [&](int64_t begin, int64_t end, int32_t slot) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t chunk = at % cut.chunks, x = at / cut.chunks % x_bands;
      const int64_t y = at / cut.chunks / x_bands % y_bands;
      Item item = {at / cut.chunks / x_bands / y_bands,
                   y * cut.rows,
                   lesser(b.oh, (y + 1) * cut.rows),
                   x * cut.cols,
                   lesser(b.ow, (x + 1) * cut.cols),
                   lesser(blocks, chunk * pairs / cut.chunks * TILE_VECTORS),
                   lesser(blocks, (chunk + 1) * pairs / cut.chunks * TILE_VECTORS),
                   nullptr};
      if (b.copied) {
        float *const copy = scratch + slot * per_slot;
        copy_band(copy, p, b, item.image, item.y0, item.y1 - item.y0);
        item.origin = copy;
      } else {
        item.origin = p.x + item.image * p.x_image + (item.y0 * p.sh + b.min_y) * b.row +
                      (item.x0 + b.min_x) * BLOCK_WORDS;
      }
      body(items, item);
    }
  });
}

}  // namespace
}  // namespace TY_ISA

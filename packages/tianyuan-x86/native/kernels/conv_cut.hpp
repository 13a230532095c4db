// Cuts a convolution into items for threads: bands of pixels by groups and chunks of output blocks.
#pragma once

#include "conv_band.hpp"

namespace TY_ISA {
namespace {

// Output pixels and blocks of channels of one image and group.
struct Item {
  int64_t group, image, y0, y1, x0, x1, o0, o1;  // o in channel blocks
};

// How many items there are along each axis. Neighbouring items are what one thread takes: outputs
// of all pixels, or pixels with all outputs.
struct Cut {
  int64_t chunks, y_bands, x_bands, unit;  // bands of x are whole units, up to the last
  bool by_outputs;
};

inline int64_t pairs_of(const ConvPlan &p) { return ceil_div(ceil_div(p.o, VF), TILE_VECTORS); }

inline int64_t items_of(const ConvPlan &p, const Cut &cut) {
  return p.groups * p.n * cut.chunks * cut.y_bands * cut.x_bands;
}

// At least `wanted` bands and a multiple of `threads`, as far as there are pixels for that. A
// copied band repeats rows of its neighbours, a tile has TILE_ROWS pixels or two short rows.
inline void cut_pixels(const Band &b, int64_t wanted, int64_t threads, Cut *cut) {
  int64_t *bands = b.flat ? &cut->x_bands : &cut->y_bands;
  const int64_t most = b.flat ? ceil_div(b.ow, 2 * TILE_ROWS) : ceil_div(b.oh, 2);
  *bands = greater(*bands, lesser(wanted, most));
  if (*bands % threads) *bands = lesser(ceil_div(*bands, threads) * threads, b.flat ? b.ow : b.oh);
  const bool whole = b.ow % TILE_ROWS == 0 || b.ow >= 8 * TILE_ROWS * *bands;
  cut->unit = b.flat && whole ? TILE_ROWS : 1;
}

// A band has at most as many pixels as was planned for its copy, so more bands are always right.
// Where weights are larger than the image, threads take outputs and read their own weights only;
// elsewhere they take pixels, which the layers around do too.
inline Cut cut_of(const ty_ctx *ctx, const ConvPlan &p, const Band &b) {
  Cut cut = {1, ceil_div(b.oh, b.rows), ceil_div(b.ow, b.cols), b.flat ? TILE_ROWS : 1, false};
  const int64_t threads = ctx->threads, pairs = pairs_of(p);
  if (threads <= 1) return cut;
  cut.by_outputs = p.o * p.n_taps > p.n * p.h * p.w && p.groups * pairs >= threads;
  // Each chunk of outputs makes a copy of its own.
  const int64_t wanted = (!b.copied ? 4 : cut.by_outputs ? 1 : 2) * threads;
  if (!cut.by_outputs) {
    cut_pixels(b, ceil_div(wanted, p.n), threads, &cut);
    cut.chunks = lesser(pairs, ceil_div(wanted, items_of(p, cut)));
    return cut;
  }
  const int64_t chunks = ceil_div(wanted, p.groups);
  cut.chunks = pairs < 2 * chunks ? pairs : chunks;
  if (items_of(p, cut) % threads) cut_pixels(b, threads, threads, &cut);
  return cut;
}

inline Item item_of(const ConvPlan &p, const Band &b, const Cut &cut, int64_t at) {
  const int64_t blocks = ceil_div(p.o, VF), pairs = pairs_of(p);
  const int64_t parts = p.groups * cut.chunks, places = p.n * cut.y_bands * cut.x_bands;
  const int64_t part = cut.by_outputs ? at / places : at % parts;
  const int64_t place = cut.by_outputs ? at % places : at / parts;
  const int64_t chunk = part % cut.chunks, units = ceil_div(b.ow, cut.unit);
  const int64_t x = place % cut.x_bands, y = place / cut.x_bands % cut.y_bands;
  return {part / cut.chunks,
          place / cut.x_bands / cut.y_bands,
          y * b.oh / cut.y_bands,
          (y + 1) * b.oh / cut.y_bands,
          x * units / cut.x_bands * cut.unit,
          lesser(b.ow, (x + 1) * units / cut.x_bands * cut.unit),
          lesser(blocks, chunk * pairs / cut.chunks * TILE_VECTORS),
          lesser(blocks, (chunk + 1) * pairs / cut.chunks * TILE_VECTORS)};
}

}  // namespace
}  // namespace TY_ISA

// How threads share images in blocks of channels between layers without large weights: by bands of
// rows, which the layers around them take too, so that a thread finds in its cache what it wrote.
#pragma once

#include "kernel.hpp"

namespace TY_ISA {
namespace {

// Pixels from which a plane is shared by bands. Smaller ones come from convolutions whose weights
// are larger than the images and which threads share by outputs.
enum { WIDE_PLANE = 128 };

// How many bands of the `rows` rows of a plane there are: one for each thread, or all of it.
inline int64_t bands_of(const ty_ctx *ctx, int64_t rows, int64_t pixels) {
  return pixels >= WIDE_PLANE ? lesser(rows, ctx->threads) : 1;
}

// Planes of images, and what one row of a plane costs in the unit of `least`.
struct Planes {
  int64_t images, blocks, rows, pixels, row;
};

// Runs body(plane, first row, end of rows) for bands of all planes, `least` of work at once.
template <typename Body>
inline void for_bands(const ty_ctx *ctx, const Planes &p, int64_t least, const Body &body) {
  const int64_t bands = bands_of(ctx, p.rows, p.pixels), items = p.images * bands * p.blocks;
  const int64_t grain = even_grain(ctx, items, 1 + least / (p.row * p.rows / bands + 1));
  ty_parallel(ctx, items, grain, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t band = at / p.blocks % bands;
      body(at / p.blocks / bands * p.blocks + at % p.blocks, band * p.rows / bands,
           (band + 1) * p.rows / bands);
    }
  });
}

}  // namespace
}  // namespace TY_ISA

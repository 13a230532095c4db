// Cuts a convolution of pairs into items: bands of source rows by runs of output blocks.
#pragma once

#include "bf16_conv.hpp"
#include "conv_cut.hpp"

namespace TY_ISA {
namespace {

// What all items of a group share.
struct Items {
  ConvPlan p;
  Band band;
  const TileSegment *table;
  int64_t segments;
};

// How many channels a segment has, in blocks: 1, or 2 that a copy puts next to each other.
template <int WIDTH>
inline int64_t planes_of(const ConvPlan &p) {
  return ceil_div(p.c, WIDTH * VF);
}

template <int WIDTH>
inline Band pair_band(const ConvPlan &p) {
  if (WIDTH == 1) return band_of(p);
  ConvPlan whole = p;
  whole.c = planes_of<WIDTH>(p) * WIDTH * VF;
  Band b = band_of(whole, true);
  b.row *= WIDTH;
  b.plane *= WIDTH;
  return b;
}

// Segments over (plane, tap), in the order in which the weight lies in memory.
template <int WIDTH>
inline int64_t fill_table(TileSegment *table, const ConvPlan &p, const Band &b) {
  enum { CHANNELS = WIDTH * VF, PIXEL = WIDTH * BLOCK_WORDS };
  TileSegment *next = table;
  for (int64_t plane = 0; plane < planes_of<WIDTH>(p); ++plane)
    for (int64_t t = 0; t < p.n_taps; ++t, ++next) {
      next->a = 4 * (plane * b.plane + tap_offset(p, b, p.taps[t], PIXEL));
      next->b = (plane * p.n_weights + p.taps[t].weight) * PIXEL * VF;
      next->count = ceil_div(lesser(CHANNELS, p.c - plane * CHANNELS), 2);
    }
  return next - table;
}

// One phase of one row of two blocks, the second of which may be missing.
inline void copy_row_wide(float *to, const float *low, const float *high, int64_t w, int64_t first,
                          int64_t step, int64_t count) {
  for (int64_t i = 0; i < count; ++i, to += 2 * BLOCK_WORDS) {
    const int64_t at = first + i * step;
    const bool inside = at >= 0 && at < w;
    copy_pixel(to, inside ? low + at * BLOCK_WORDS : nullptr);
    copy_pixel(to + BLOCK_WORDS, inside && high ? high + at * BLOCK_WORDS : nullptr);
  }
}

// copy_band with two blocks of channels next to each other in each pixel.
inline void copy_wide(float *to, const ConvPlan &p, const Band &b, int64_t image, int64_t y0,
                      int64_t rows) {
  const int64_t needed = copied_rows(p, b, rows), width = b.phase_width * 2 * BLOCK_WORDS;
  const int64_t blocks = ceil_div(p.c, VF), size = p.h * p.w * BLOCK_WORDS;
  for (int64_t row = 0; row < needed; ++row) {
    const int64_t y = y0 * p.sh + b.min_y + row;
    for (int64_t phase = 0; phase < p.sw; ++phase) {
      const int64_t bit = row % p.sh * p.sw + phase;
      if (bit < 64 && !(b.used >> bit & 1)) continue;
      for (int64_t block = 0; block < blocks; block += 2) {
        float *out = to + block / 2 * b.plane + row * b.row + phase * width;
        if (y < 0 || y >= p.h) {
          memset(out, 0, static_cast<size_t>(width) * sizeof(float));
          continue;
        }
        const float *low = p.x + image * p.x_image + block * size + y * p.w * BLOCK_WORDS;
        copy_row_wide(out, low, block + 1 < blocks ? low + size : nullptr, p.w, phase + b.min_x,
                      p.sw, b.phase_width);
      }
    }
  }
}

inline int64_t table_words(int64_t planes, int64_t taps) {
  const int64_t bytes = planes * taps * static_cast<int64_t>(sizeof(TileSegment));
  return ceil_div(bytes, 64) * 16;
}

// Calls body(items, item, origin) for all items, in parallel; the pixel that tap (min_y, min_x)
// meets at the first of an item lies at `origin`. The workspace is that of pair_conv_run.
template <int WIDTH, typename Body>
inline void for_items(const ty_ctx *ctx, const ConvPlan &p, float *workspace, const Body &body) {
  if (p.n == 0 || p.o == 0 || p.oh <= 0 || p.ow <= 0) return;
  const Band b = pair_band<WIDTH>(p);
  const Cut cut = cut_of(ctx, p, b);
  TileSegment *table = reinterpret_cast<TileSegment *>(workspace);
  const int64_t segments = fill_table<WIDTH>(table, p, b);
  float *const scratch = workspace + table_words(planes_of<WIDTH>(p), p.n_taps);
  const int64_t per_slot = b.copied ? ceil_div(planes_of<WIDTH>(p) * b.plane, 16) * 16 : 0;
  ty_parallel(ctx, items_of(p, cut), 1, [&](int64_t begin, int64_t end, int32_t slot) {
    for (int64_t at = begin; at < end; ++at) {
      const Item item = item_of(p, b, cut, at);
      const Items own = {group_of(p, item.group), b, table, segments};
      const float *origin = own.p.x + item.image * p.x_image + (item.y0 * p.sh + b.min_y) * b.row +
                            (item.x0 + b.min_x) * BLOCK_WORDS;
      if (b.copied) {
        float *const copy = scratch + slot * per_slot;
        (WIDTH == 2 ? copy_wide : copy_band)(copy, own.p, b, item.image, item.y0,
                                             item.y1 - item.y0);
        origin = copy;
      }
      body(own, item, origin);
    }
  });
}

}  // namespace
}  // namespace TY_ISA

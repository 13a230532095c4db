// The loops around the tile: bands of padded rows, pairs of output-channel blocks, tiles of pixels.
#include "conv_cut.hpp"

namespace TY_ISA {
namespace {

// Whether taps that follow one another in a row of the kernel make one segment: with a single
// channel, a segment per tap would be a single step.
bool joins_taps(const ConvPlan &p) { return p.c == 1 && !p.x_blocked && p.sw == 1; }

// Segments over (channel block, tap), in the order in which the weight lies in memory.
int64_t fill_table(TileSegment *table, const ConvPlan &p, const Band &b) {
  const int64_t blocks = ceil_div(p.c, VF);
  TileSegment *next = table;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t plane = (p.x_blocked ? block : block * VF) * b.plane;
    for (int64_t t = 0; t < p.n_taps; ++t) {
      next->a = plane + tap_offset(p, b, p.taps[t], pixel_floats(p));
      next->b = (block * p.n_weights + p.taps[t].weight) * VF * VF;
      next->count = lesser(VF, p.c - block * VF);
      if (joins_taps(p) && next != table && next->a == next[-1].a + next[-1].count &&
          next->b == next[-1].b + next[-1].count * VF * VF)
        ++next[-1].count;
      else
        ++next;
    }
  }
  return next - table;
}

enum { AHEAD_FLOATS = 32 * 1024 };

// Pixels of one tile: `halves` rows of `width` pixels from (y, x).
struct Pixels {
  int64_t y, x, width;
  int halves;
};

TY_INLINE vf finish(const ConvPlan &p, vf sum, vf bias, const float *residual, vtail tail) {
  sum = vadd(sum, bias);
  if (residual) sum = vadd(sum, vload_tail(residual, tail));
  return activate(sum, p.epilogue);
}

// One run of neighbouring pixels of one channel block. The activation is a constant where it is
// inlined, so that the loop has no branch.
TY_INLINE void store_run(const ConvPlan &p, const Epilogue &e, const float *acc, int64_t acc_step,
                         int64_t at, int64_t count, vf bias, vm valid) {
  const float *residual = p.residual ? p.residual + at : nullptr;
  float *y = p.y + at;
  if (residual) {
    for (int64_t i = 0; i < count; ++i) {
      const vf sum = vadd(vadd(vload(acc + i * acc_step), bias), vload(residual + i * VF));
      vstore(y + i * VF, vselect(valid, activate(sum, e), vzero()));
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const vf sum = vadd(vload(acc + i * acc_step), bias);
      vstore(y + i * VF, vselect(valid, activate(sum, e), vzero()));
    }
  }
}

void store_blocked(const float *acc, const ConvPlan &p, const Pixels &s, int64_t image,
                   int64_t block, int vectors) {
  const Epilogue bounds = as_clip(p.epilogue);
  for (int v = 0; v < vectors; ++v) {
    const int64_t channel = (block + v) * VF;
    const vtail lanes = vtail_of(p.o - channel);
    const vm valid = vtail_mask(lanes);
    const vf bias = p.bias ? vload_tail(p.bias + channel, lanes) : vzero();
    for (int half = 0; half < s.halves; ++half) {
      const float *from = acc + (half * s.width * vectors + v) * VF;
      const int64_t at =
          image * p.y_image + (block + v) * p.y_channel + (s.y + half) * p.y_row + s.x * VF;
      const int64_t step = vectors * VF;
      if (bounds.activation == ACT_CLIP)
        store_run(p, {ACT_CLIP, bounds.lower, bounds.upper}, from, step, at, s.width, bias, valid);
      else
        store_run(p, p.epilogue, from, step, at, s.width, bias, valid);
    }
  }
}

// Channels become rows by transposing; a run of pixels in one row is contiguous where y_pixel is 1.
void store_plain(const float *acc, const ConvPlan &p, const Pixels &s, int64_t image, int64_t block,
                 int vectors) {
  for (int v = 0; v < vectors; ++v) {
    const int64_t channel = (block + v) * VF, channels = lesser(VF, p.o - channel);
    for (int half = 0; half < s.halves; ++half) {
      for (int64_t x = 0; x < s.width; x += VF) {
        const int64_t some = lesser(VF, s.width - x);
        const float *from = acc + ((half * s.width + x) * vectors + v) * VF;
        vf block_of[VF];
#pragma GCC unroll 16
        for (int i = 0; i < VF; ++i)
          block_of[i] = i < some ? vload(from + i * vectors * VF) : vzero();
        vtranspose(block_of);
        const vtail tail = vtail_of(some);
        for (int64_t r = 0; r < channels; ++r) {
          const vf bias = p.bias ? vset1(p.bias[channel + r]) : vzero();
          const int64_t at = image * p.y_image + (channel + r) * p.y_channel +
                             (s.y + half) * p.y_row + (s.x + x) * p.y_pixel;
          const float *residual = p.residual ? p.residual + at : nullptr;
          if (p.y_pixel == 1) {
            vstore_tail(p.y + at, finish(p, block_of[r], bias, residual, tail), tail);
            continue;
          }
          float lanes[VF];
          vstore(lanes, finish(p, block_of[r], bias, nullptr, tail));
          for (int64_t i = 0; i < some; ++i) p.y[at + i * p.y_pixel] = lanes[i];
        }
      }
    }
  }
}

struct Pass {
  ty_ahead *ahead;  // what a later step reads, or NULL
  const ConvPlan *plan;
  const Band *band;
  TileArgs tile;
  TileOut out;
  const float *origin;  // source of the item's pixel (y0, x0)
  Item item;
  int64_t block;
  int vectors;
};

// Whether the tile may finish its sums itself: they are only bounded, which zeros are already.
bool finishes(const ConvPlan &p, Epilogue *bounds) {
  *bounds = as_clip(p.epilogue);
  return p.y_blocked && bounds->activation == ACT_CLIP && bounds->lower <= 0.0f &&
         bounds->upper >= 0.0f;
}

void load_bias(float *to, const ConvPlan &p, int64_t block, int vectors) {
  for (int v = 0; v < vectors; ++v) {
    const int64_t channel = (block + v) * VF;
    vstore(to + v * VF, p.bias ? vload_tail(p.bias + channel, vtail_of(p.o - channel)) : vzero());
  }
}

void run_pixels(Pass *pass, const Pixels &s) {
  const ConvPlan &p = *pass->plan;
  const int64_t pixel = pixel_floats(p);
  pass->tile.a =
      pass->origin + (s.y - pass->item.y0) * p.sh * pass->band->row + (s.x - pass->item.x0) * pixel;
  pass->tile.a_row = p.sh * pass->band->row;
  const TileKind kind = p.x_blocked ? TILE_BLOCK : TILE_UNIT;
  if (pass->tile.out) {
    const int64_t at =
        pass->item.image * p.y_image + pass->block * p.y_channel + s.y * p.y_row + s.x * p.y_pixel;
    pass->out.y = p.y + at;
    pass->out.residual = p.residual ? p.residual + at : nullptr;
  }
  if (kind == TILE_BLOCK && pass->ahead) {
    pass->tile.line = take_ahead(pass->ahead, p.c * p.n_taps);
    pass->tile.line_step = pass->tile.line ? AHEAD_LINE : 0;
  }
  tile_of(kind, s.halves, static_cast<int>(s.width * s.halves), pass->vectors,
          p.o - (pass->block + pass->vectors - 1) * VF)(&pass->tile);
  if (pass->tile.out) return;
  if (p.y_blocked)
    store_blocked(pass->tile.c, p, s, pass->item.image, pass->block, pass->vectors);
  else
    store_plain(pass->tile.c, p, s, pass->item.image, pass->block, pass->vectors);
}

// All pixels of the item for one pair of channel blocks: rows in tiles of nearly equal width, or
// two short rows per tile.
void run_rows(Pass *pass) {
  const Item &item = pass->item;
  const int64_t width = item.x1 - item.x0;
  const int64_t tiles = ceil_div(width, TILE_ROWS);
  // The last tile brings the weights of the next blocks near, unless they would fill the cache.
  const int64_t next = TILE_VECTORS * pass->tile.b_next;
  const int64_t ahead = next <= AHEAD_FLOATS ? next : 0;
  for (int64_t y = item.y0; y < item.y1; ++y) {
    if (width <= TILE_ROWS / 2 && y + 1 < item.y1) {
      pass->tile.ahead = y + 2 >= item.y1 ? ahead : 0;
      run_pixels(pass, {y, item.x0, width, 2});
      ++y;
      continue;
    }
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t begin = t * width / tiles, end = (t + 1) * width / tiles;
      pass->tile.ahead = y + 1 == item.y1 && t == tiles - 1 ? ahead : 0;
      run_pixels(pass, {y, item.x0 + begin, end - begin, 1});
    }
  }
}

void run_item(const ty_ctx *ctx, const ConvPlan &p, const Band &b, const TileSegment *table,
              int64_t segments, const Item &item, float *scratch) {
  alignas(64) float acc[TILE_ROWS * TILE_LANES];
  Pass pass = {};
  pass.ahead = ahead_of(ctx);
  pass.plan = &p;
  pass.band = &b;
  pass.item = item;
  pass.tile.segments = table;
  pass.tile.n_segments = segments;
  pass.tile.a_step = p.x_blocked || joins_taps(p) ? 1 : b.plane;
  pass.tile.b_step = joins_taps(p) ? VF * VF : VF;
  pass.tile.b_next = ceil_div(p.c, VF) * p.n_weights * VF * VF;
  pass.tile.c = acc;
  Epilogue bounds;
  if (finishes(p, &bounds)) {
    pass.tile.out = &pass.out;
    pass.out.next = p.y_channel;
    pass.out.half = p.y_row;
    pass.out.lower = bounds.lower;
    pass.out.upper = bounds.upper;
  }
  if (b.copied) {
    copy_band(scratch, p, b, item.image, item.y0, item.y1 - item.y0);
    pass.origin = scratch;
  } else {
    pass.origin = p.x + item.image * p.x_image + (item.y0 * p.sh + b.min_y) * b.row +
                  (item.x0 + b.min_x) * pixel_floats(p);
  }
  for (int64_t block = item.o0; block < item.o1; block += TILE_VECTORS) {
    pass.block = block;
    pass.vectors = static_cast<int>(lesser(TILE_VECTORS, item.o1 - block));
    pass.tile.b = p.weight + block * pass.tile.b_next;
    if (pass.tile.out) load_bias(pass.out.bias, p, block, pass.vectors);
    pass.out.lanes = p.o - block * VF;
    run_rows(&pass);
  }
}

}  // namespace

int64_t conv_table_floats(int64_t c, int64_t taps) {
  const int64_t bytes = ceil_div(c, VF) * taps * static_cast<int64_t>(sizeof(TileSegment));
  return ceil_div(bytes, 64) * 16;
}

int64_t conv_band_floats(const ConvPlan &p) {
  const Band b = band_of(p);
  return b.copied ? ceil_div(source_planes(p) * b.plane, 16) * 16 : 0;
}

void conv_run(const ty_ctx *ctx, const ConvPlan &p, float *workspace) {
  if (p.n == 0 || p.o == 0 || p.oh <= 0 || p.ow <= 0) return;
  const Band b = band_of(p);
  const Cut cut = cut_of(ctx, p, b);
  TileSegment *table = reinterpret_cast<TileSegment *>(workspace);
  const int64_t segments = fill_table(table, p, b);
  float *const scratch = workspace + conv_table_floats(p.c, p.n_taps);
  const int64_t per_slot = conv_band_floats(p);
  ty_parallel(ctx, items_of(p, cut), 1, [&](int64_t begin, int64_t end, int32_t slot) {
    for (int64_t at = begin; at < end; ++at) {
      const Item item = item_of(p, b, cut, at);
      run_item(ctx, group_of(p, item.group), b, table, segments, item, scratch + slot * per_slot);
    }
  });
}

}  // namespace TY_ISA

// The loops around the tile: bands of padded rows, pairs of output-channel blocks, tiles of pixels.
#include "conv.hpp"

namespace TY_ISA {
namespace {

// Where the pixels of a band lie: in a padded copy whose columns are split into sw phases, so that
// neighbouring output pixels always have neighbouring source pixels, or in x itself.
struct Band {
  bool copied, flat;
  int64_t min_y, min_x, span_y, span_x;
  int64_t phase_width, row, plane;  // floats between rows, between channels or channel blocks
  int64_t rows, cols;               // output pixels of one band
  int64_t oh, ow;                   // extents of the iteration, 1 x all pixels where flat
};

int64_t pixel_floats(const ConvPlan &p) { return p.x_blocked ? VF : 1; }
int64_t source_planes(const ConvPlan &p) { return p.x_blocked ? ceil_div(p.c, VF) : p.c; }

void find_spans(const ConvPlan &p, Band *b) {
  int64_t max_y = 0, max_x = 0;
  b->min_y = b->min_x = 0;
  for (int64_t t = 0; t < p.n_taps; ++t) {
    const ConvTap &tap = p.taps[t];
    b->min_y = t ? lesser(b->min_y, tap.y) : tap.y;
    b->min_x = t ? lesser(b->min_x, tap.x) : tap.x;
    max_y = t ? greater(max_y, tap.y) : tap.y;
    max_x = t ? greater(max_x, tap.x) : tap.x;
  }
  b->span_y = max_y - b->min_y;
  b->span_x = max_x - b->min_x;
}

int64_t copied_rows(const ConvPlan &p, const Band &b, int64_t rows) {
  return (rows - 1) * p.sh + b.span_y + 1;
}

Band band_of(const ConvPlan &p) {
  Band b = {};
  find_spans(p, &b);
  const int64_t pixel = pixel_floats(p);
  b.oh = p.oh;
  b.ow = p.ow;
  const bool inside = b.min_y >= 0 && b.min_x >= 0 &&
                      b.min_y + b.span_y + (p.oh - 1) * p.sh < p.h &&
                      b.min_x + b.span_x + p.ow - 1 < p.w;
  b.copied = p.sw != 1 || !inside;
  if (!b.copied) {
    b.row = p.w * pixel;
    b.plane = p.h * b.row;
    const bool pointwise = b.span_y == 0 && b.span_x == 0 && b.min_y == 0 && b.min_x == 0;
    b.flat = pointwise && p.sh == 1 && p.ow == p.w && p.y_row == p.ow * p.y_pixel;
    const int64_t fit = greater(BAND_FLOATS / (pixel * source_planes(p) + 1), TILE_ROWS);
    if (b.flat) {
      b.oh = 1;
      b.ow = p.oh * p.ow;
      b.cols = lesser(b.ow, fit / TILE_ROWS * TILE_ROWS);
      b.rows = 1;
    } else {
      b.cols = p.ow;
      b.rows = lesser(p.oh, greater(1, fit / p.ow));
    }
    return b;
  }
  b.phase_width = p.ow + b.span_x / p.sw;
  b.row = p.sw * b.phase_width * pixel;
  b.cols = p.ow;
  b.rows = 1;
  const int64_t per_row = b.row * source_planes(p);
  while (b.rows < p.oh && copied_rows(p, b, b.rows + 1) * per_row <= BAND_FLOATS) ++b.rows;
  b.rows = ceil_div(p.oh, ceil_div(p.oh, b.rows));
  b.plane = copied_rows(p, b, b.rows) * b.row;
  return b;
}

bool tap_meets(const ConvPlan &p, const Band &b, int64_t row, int64_t phase) {
  for (int64_t t = 0; t < p.n_taps; ++t) {
    const int64_t y = row - (p.taps[t].y - b.min_y), x = p.taps[t].x - b.min_x;
    if (y >= 0 && y % p.sh == 0 && x % p.sw == phase) return true;
  }
  return false;
}

// One phase of one row: to[i] = from[first + i * step] where that lies in [0, w), else zero.
void copy_row_plain(float *to, const float *from, int64_t w, int64_t first, int64_t step,
                    int64_t count) {
  int64_t i = 0;
  for (; i < count && first + i * step < 0; ++i) to[i] = 0.0f;
  const int64_t reach = w - first;
  const int64_t end = reach <= 0 ? i : greater(i, lesser(count, ceil_div(reach, step)));
  if (step == 1) {
    memcpy(to + i, from + first + i, static_cast<size_t>(end - i) * sizeof(float));
    i = end;
  } else {
    for (; i < end; ++i) to[i] = from[first + i * step];
  }
  for (; i < count; ++i) to[i] = 0.0f;
}

void copy_row_blocked(float *to, const float *from, int64_t w, int64_t first, int64_t step,
                      int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i * step;
    vstore(to + i * VF, at >= 0 && at < w ? vload(from + at * VF) : vzero());
  }
}

void copy_band(float *to, const ConvPlan &p, const Band &b, int64_t image, int64_t y0,
               int64_t rows) {
  const int64_t pixel = pixel_floats(p), planes = source_planes(p);
  const int64_t needed = copied_rows(p, b, rows);
  const int64_t width = b.phase_width * pixel;
  for (int64_t row = 0; row < needed; ++row) {
    const int64_t y = y0 * p.sh + b.min_y + row;
    for (int64_t phase = 0; phase < p.sw; ++phase) {
      if (!tap_meets(p, b, row, phase)) continue;
      for (int64_t plane = 0; plane < planes; ++plane) {
        float *out = to + plane * b.plane + row * b.row + phase * width;
        if (y < 0 || y >= p.h) {
          memset(out, 0, static_cast<size_t>(width) * sizeof(float));
          continue;
        }
        const float *from = p.x + image * p.x_image + (plane * p.h + y) * p.w * pixel;
        if (p.x_blocked)
          copy_row_blocked(out, from, p.w, phase + b.min_x, p.sw, b.phase_width);
        else
          copy_row_plain(out, from, p.w, phase + b.min_x, p.sw, b.phase_width);
      }
    }
  }
}

// Segments over (channel block, tap), in the order in which the weight lies in memory.
int64_t fill_table(TileSegment *table, const ConvPlan &p, const Band &b) {
  const int64_t pixel = pixel_floats(p), blocks = ceil_div(p.c, VF);
  TileSegment *next = table;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t plane = (p.x_blocked ? block : block * VF) * b.plane;
    for (int64_t t = 0; t < p.n_taps; ++t) {
      const int64_t y = p.taps[t].y - b.min_y, x = p.taps[t].x - b.min_x;
      const int64_t column = b.copied ? (x % p.sw) * b.phase_width + x / p.sw : x;
      next->a = plane + y * b.row + column * pixel;
      next->b = (block * p.n_weights + p.taps[t].weight) * VF * VF;
      next->count = lesser(VF, p.c - block * VF);
      ++next;
    }
  }
  return next - table;
}

struct Item {
  int64_t image, y0, y1, x0, x1, o0, o1;  // o in channel blocks
};

// Pixels of one tile: `halves` rows of `width` pixels from (y, x).
struct Pixels {
  int64_t y, x, width;
  int halves;
};

TY_INLINE int64_t pixel_at(const ConvPlan &p, const Pixels &s, int64_t i) {
  return (s.y + i / s.width) * p.y_row + (s.x + i % s.width) * p.y_pixel;
}

TY_INLINE vf finish(const ConvPlan &p, vf sum, vf bias, const float *residual, vtail tail) {
  sum = vadd(sum, bias);
  if (residual) sum = vadd(sum, vload_tail(residual, tail));
  return activate(sum, p.epilogue);
}

void store_blocked(const float *acc, const ConvPlan &p, const Pixels &s, int64_t image,
                   int64_t block, int vectors) {
  const int64_t rows = s.width * s.halves;
  const vtail all = vtail_of(VF);
  for (int v = 0; v < vectors; ++v) {
    const int64_t channel = (block + v) * VF;
    const vtail valid = vtail_of(p.o - channel);
    const bool full = p.o - channel >= VF;
    const vf bias = p.bias ? vload_tail(p.bias + channel, valid) : vzero();
    const int64_t base = image * p.y_image + (block + v) * p.y_channel;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = base + pixel_at(p, s, i);
      const float *residual = p.residual ? p.residual + at : nullptr;
      vf y = finish(p, vload(acc + (i * vectors + v) * VF), bias, residual, all);
      if (!full) y = vselect(vtail_mask(valid), y, vzero());
      vstore(p.y + at, y);
    }
  }
}

// Channels become rows by transposing; a run of pixels in one row is contiguous where y_pixel is 1.
void store_plain(const float *acc, const ConvPlan &p, const Pixels &s, int64_t image,
                 int64_t block, int vectors) {
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
  const ConvPlan *plan;
  const Band *band;
  TileArgs tile;
  const float *origin;  // source of the item's pixel (y0, x0)
  Item item;
  int64_t block;
  int vectors;
};

void run_pixels(Pass *pass, const Pixels &s) {
  const ConvPlan &p = *pass->plan;
  const int64_t pixel = pixel_floats(p);
  pass->tile.a = pass->origin + (s.y - pass->item.y0) * p.sh * pass->band->row +
                 (s.x - pass->item.x0) * pixel;
  pass->tile.a_row = p.sh * pass->band->row;
  const TileKind kind = p.x_blocked ? TILE_BLOCK : TILE_UNIT;
  tile_of(kind, s.halves, static_cast<int>(s.width * s.halves), pass->vectors)(&pass->tile);
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
  for (int64_t y = item.y0; y < item.y1; ++y) {
    if (width <= TILE_ROWS / 2 && y + 1 < item.y1) {
      run_pixels(pass, {y, item.x0, width, 2});
      ++y;
      continue;
    }
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t begin = t * width / tiles, end = (t + 1) * width / tiles;
      run_pixels(pass, {y, item.x0 + begin, end - begin, 1});
    }
  }
}

void run_item(const ConvPlan &p, const Band &b, const TileSegment *table, int64_t segments,
              const Item &item, float *scratch) {
  alignas(64) float acc[TILE_ROWS * TILE_LANES];
  Pass pass = {};
  pass.plan = &p;
  pass.band = &b;
  pass.item = item;
  pass.tile.segments = table;
  pass.tile.n_segments = segments;
  pass.tile.a_step = p.x_blocked ? 1 : b.plane;
  pass.tile.b_step = VF;
  pass.tile.b_next = ceil_div(p.c, VF) * p.n_weights * VF * VF;
  pass.tile.c = acc;
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
  Band b = band_of(p);
  const int64_t blocks = ceil_div(p.o, VF), pairs = ceil_div(blocks, TILE_VECTORS);
  // A band has at most as many rows as its copy was planned for, so fewer are always right.
  int64_t rows = b.rows, cols = b.cols, chunks = 1;
  const int64_t wanted = ctx->threads > 1 ? 4 * ctx->threads : 1;
  const auto items = [&] { return p.n * ceil_div(b.oh, rows) * ceil_div(b.ow, cols) * chunks; };
  while (items() < wanted && b.flat && cols > 4 * TILE_ROWS) cols = ceil_div(cols / 2, TILE_ROWS) * TILE_ROWS;
  while (items() < wanted && chunks * 2 <= pairs) chunks *= 2;
  while (items() < wanted && rows > 2) rows = ceil_div(rows, 2);
  TileSegment *table = reinterpret_cast<TileSegment *>(workspace);
  const int64_t segments = fill_table(table, p, b);
  float *const scratch = workspace + conv_table_floats(p.c, p.n_taps);
  const int64_t per_slot = conv_band_floats(p);
  const int64_t y_bands = ceil_div(b.oh, rows), x_bands = ceil_div(b.ow, cols);
  ty_parallel(ctx, items(), 1, [&](int64_t begin, int64_t end, int32_t slot) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t chunk = at % chunks, x = at / chunks % x_bands;
      const int64_t y = at / chunks / x_bands % y_bands;
      const Item item = {at / chunks / x_bands / y_bands,
                         y * rows,
                         lesser(b.oh, (y + 1) * rows),
                         x * cols,
                         lesser(b.ow, (x + 1) * cols),
                         lesser(blocks, chunk * pairs / chunks * TILE_VECTORS),
                         lesser(blocks, (chunk + 1) * pairs / chunks * TILE_VECTORS)};
      run_item(p, b, table, segments, item, scratch + slot * per_slot);
    }
  });
}

}  // namespace TY_ISA

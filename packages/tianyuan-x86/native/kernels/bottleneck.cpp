// A depthwise convolution with the pointwise ones around it in one step on blocked images, band by
// band of rows, so that the wide planes between them never leave the second-level cache. Every sum
// is added in the order of the separate convolutions.
#include "conv_shape.hpp"
#include "depthwise.hpp"

namespace TY_ISA {
namespace {

// bottleneck.py knows the same: floats of wide planes that a band keeps, unless one row needs more,
// and the largest plane that threads share before it is projected.
enum { WIDE_FLOATS = 108 * 1024, SHARED_FLOATS = 160 * 1024 };

// One pointwise convolution over neighbouring pixels; distances in floats.
struct Pointwise {
  const float *weight, *bias;
  int64_t c, o;
  Epilogue epilogue;
  ty_ahead *ahead;  // what a later step reads, or NULL
  const TileSegment *segments;
};

struct Bottleneck {
  ConvShape wide;  // of the depthwise convolution
  bool expands;
  Pointwise expand, project;
  const float *x, *depthwise, *depthwise_bias, *residual;
  float *y;
  Epilogue after_depthwise;
  int64_t rows, kept;  // output rows of a band, source rows that it meets
};

// Floats of the expanded rows and of the depthwise result of a band.
int64_t ring_floats(const Bottleneck &b) {
  return b.expands ? ceil_div(b.wide.c, VF) * b.kept * b.wide.w * VF : 0;
}

int64_t middle_floats(const Bottleneck &b) {
  return ceil_div(b.wide.c, VF) * b.rows * b.wide.ow * VF;
}

// Whether threads share the whole plane that is projected, instead of taking rows each: where more
// than a tenth of the work would be lost to rows that are expanded twice, about half of the work,
// and to shares of unequal height.
bool by_channels(const Bottleneck &b, int64_t threads) {
  const ConvShape &s = b.wide;
  if (threads <= 1 || s.n >= threads || ceil_div(s.c, VF) * VF * s.oh * s.ow > SHARED_FLOATS)
    return false;
  const int64_t uneven = ceil_div(s.oh, threads) * threads - s.oh;
  const int64_t again = b.expands ? (threads - 1) * greater(s.kh - s.sh, 0) : 0;
  return 10 * (2 * s.h * uneven + s.oh * again) > 2 * s.h * s.oh;
}

// Chunks of rows that threads take.
int64_t chunks_of(const Bottleneck &b, int64_t threads) {
  const int64_t most = threads > 1 ? threads * (b.expands ? 1 : 4) : 1;
  return lesser(b.wide.oh, ceil_div(most, b.wide.n));
}

void choose_rows(Bottleneck *b, int64_t all) {
  const ConvShape &s = b->wide;
  const auto with = [&](int64_t rows) {
    b->rows = rows;
    b->kept = (rows - 1) * s.sh + s.kh;
    return ring_floats(*b) + middle_floats(*b);
  };
  int64_t rows = 1;
  while (rows < all && with(rows + 1) <= WIDE_FLOATS) ++rows;
  with(ceil_div(all, ceil_div(all, rows)));
}

void fill_segments(TileSegment *to, const Pointwise &p, int64_t x_block) {
  for (int64_t block = 0; block * VF < p.c; ++block)
    to[block] = {block * x_block, block * VF * VF, lesser(VF, p.c - block * VF)};
}

// Where sums cannot be finished in registers.
void finish_pixels(const Epilogue &e, const TileOut &out, const float *acc, int vectors,
                   int64_t pixels, int64_t channels) {
  for (int v = 0; v < vectors; ++v) {
    const vm valid = vtail_mask(vtail_of(channels - v * VF));
    const vf bias = vload(out.bias + v * VF);
    for (int64_t i = 0; i < pixels; ++i) {
      vf sum = vadd(vload(acc + (i * vectors + v) * VF), bias);
      if (out.residual) sum = vadd(sum, vload(out.residual + v * out.next + i * VF));
      vstore(out.y + v * out.next + i * VF, vselect(valid, activate(sum, e), vzero()));
    }
  }
}

// Output blocks [block, block + vectors) of `pixels` pixels; `y` points to the first of them.
void run_pointwise(const Pointwise &p, const float *x, float *y, const float *residual,
                   int64_t y_block, int64_t pixels, int64_t block, int vectors) {
  alignas(64) float acc[TILE_ROWS * TILE_LANES];
  const Epilogue bounds = as_clip(p.epilogue);
  const bool finishes =
      bounds.activation == ACT_CLIP && bounds.lower <= 0.0f && bounds.upper >= 0.0f;
  TileOut out = {};
  out.next = y_block;
  out.lanes = p.o - block * VF;
  out.lower = bounds.lower;
  out.upper = bounds.upper;
  for (int v = 0; v < vectors; ++v) {
    const int64_t channel = (block + v) * VF;
    vstore(out.bias + v * VF, vload_tail(p.bias + channel, vtail_of(p.o - channel)));
  }
  TileArgs tile = {};
  tile.segments = p.segments;
  tile.n_segments = ceil_div(p.c, VF);
  tile.a_step = 1;
  tile.b_step = VF;
  tile.b_next = ceil_div(p.c, VF) * VF * VF;
  tile.b = p.weight + block * tile.b_next;
  tile.c = acc;
  tile.out = finishes ? &out : nullptr;
  const int64_t tiles = ceil_div(pixels, TILE_ROWS);
  ty_ahead *const ahead = p.ahead;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t begin = t * pixels / tiles, count = (t + 1) * pixels / tiles - begin;
    tile.a = x + begin * VF;
    if (ahead) {
      tile.line = take_ahead(ahead, p.c);
      tile.line_step = tile.line ? AHEAD_LINE : 0;
    }
    tile.ahead = t == tiles - 1 ? TILE_VECTORS * tile.b_next : 0;
    out.y = y + begin * VF;
    out.residual = residual ? residual + begin * VF : nullptr;
    tile_of(TILE_BLOCK, 1, static_cast<int>(count), vectors,
            p.o - (block + vectors - 1) * VF)(&tile);
    if (!finishes) finish_pixels(p.epilogue, out, acc, vectors, count, p.o - block * VF);
  }
}

struct Chunk {
  int64_t image, y0, y1;
};

// Planes of some wide blocks: expanded rows, of which row y stands at y % kept, and what the
// depthwise convolution makes of them.
struct Wide {
  float *ring, *middle;
};

// Expands rows [begin, end) to the blocks of `wide` from `block` on.
void expand_rows(const Bottleneck &b, const Wide &wide, int64_t image, int64_t begin, int64_t end,
                 int64_t block, int vectors) {
  const ConvShape &s = b.wide;
  const int64_t line = s.w * VF;
  const float *x = b.x + image * ceil_div(b.expand.c, VF) * s.h * line;
  for (int64_t y = begin, rows; y < end; y += rows) {
    rows = lesser(end - y, b.kept - y % b.kept);
    run_pointwise(b.expand, x + y * line, wide.ring + y % b.kept * line, nullptr, b.kept * line,
                  rows * s.w, block, vectors);
  }
}

// Output rows [begin, end) of one block, whose planes `wide` has.
void filter_rows(const Bottleneck &b, const Wide &wide, int64_t image, int64_t begin, int64_t end,
                 int64_t block) {
  const ConvShape &s = b.wide;
  const int64_t channels = s.c - block * VF;
  const float *x =
      b.expands ? wide.ring : b.x + (image * ceil_div(s.c, VF) + block) * s.h * s.w * VF;
  const BlockRow to = {nullptr,
                       wide.middle,
                       vload_tail(b.depthwise_bias + block * VF, vtail_of(channels)),
                       vtail_of(channels),
                       channels >= VF,
                       as_clip(b.after_depthwise)};
  run_depthwise_of(s)({&s, x, b.expands ? b.kept : s.h, b.depthwise + block * s.kh * s.kw * VF}, to,
                      begin, end);
}

// A pair of blocks through the first two convolutions; `wide` points to its planes.
void widen(const Bottleneck &b, const Wide &wide, const Chunk &band, int64_t from, int64_t to,
           int64_t block) {
  const ConvShape &s = b.wide;
  const int vectors = static_cast<int>(lesser(TILE_VECTORS, ceil_div(s.c, VF) - block));
  if (b.expands) expand_rows(b, wide, band.image, from, to, block, vectors);
  for (int v = 0; v < vectors; ++v)
    filter_rows(b, {wide.ring + v * b.kept * s.w * VF, wide.middle + v * b.rows * s.ow * VF},
                band.image, band.y0, band.y1, block + v);
}

// Projects `pixels` pixels of `middle`, which begin at pixel `first` of the image, to two blocks.
void project(const Bottleneck &b, const float *middle, int64_t image, int64_t first, int64_t pixels,
             int64_t block) {
  const int64_t plane = b.wide.oh * b.wide.ow * VF, outputs = ceil_div(b.project.o, VF);
  const int64_t at = (image * outputs + block) * plane + first * VF;
  run_pointwise(b.project, middle, b.y + at, b.residual ? b.residual + at : nullptr, plane, pixels,
                block, static_cast<int>(lesser(TILE_VECTORS, outputs - block)));
}

void run_chunk(const Bottleneck &b, const Wide &wide, const Chunk &chunk) {
  const ConvShape &s = b.wide;
  const int64_t ring = b.kept * s.w * VF, middle = b.rows * s.ow * VF;
  int64_t next = 0;  // first row that has not been expanded
  for (int64_t y = chunk.y0; y < chunk.y1; y += b.rows) {
    const int64_t end = lesser(chunk.y1, y + b.rows);
    const int64_t from = greater(next, y * s.sh - s.top);
    const int64_t to = lesser(s.h, (end - 1) * s.sh - s.top + s.kh);
    for (int64_t block = 0; block * VF < s.c; block += TILE_VECTORS)
      widen(b, {wide.ring + (b.expands ? block * ring : 0), wide.middle + block * middle},
            {chunk.image, y, end}, from, to, block);
    next = greater(from, to);
    for (int64_t block = 0; block * VF < b.project.o; block += TILE_VECTORS)
      project(b, wide.middle, chunk.image, y * s.ow, (end - y) * s.ow, block);
  }
}

// Threads take chunks of rows. Rows around the cuts are expanded twice.
void run_by_rows(const ty_ctx *ctx, const Bottleneck &b, float *planes) {
  const ConvShape &s = b.wide;
  const int64_t ring = ring_floats(b), per_slot = ring + middle_floats(b);
  const int64_t chunks = chunks_of(b, ctx->threads);
  ty_parallel(ctx, s.n * chunks, 1, [&](int64_t begin, int64_t end, int32_t slot) {
    float *const own = planes + slot * per_slot;
    for (int64_t at = begin; at < end; ++at) {
      const int64_t chunk = at % chunks;
      run_chunk(b, {own, own + ring},
                {at / chunks, chunk * s.oh / chunks, (chunk + 1) * s.oh / chunks});
    }
  });
}

// Threads take pairs of wide blocks, and once all are there, parts of the result: nothing is
// computed twice, but the plane between must fit the caches.
void run_by_channels(const ty_ctx *ctx, const Bottleneck &b, float *planes) {
  const ConvShape &s = b.wide;
  const int64_t pixels = s.oh * s.ow, middle = pixels * VF;
  const int64_t ring = b.expands ? TILE_VECTORS * b.kept * s.w * VF : 0;
  float *const shared = planes + ctx->threads * ring;
  const int64_t pairs = ceil_div(s.c, TILE_LANES), outputs = ceil_div(b.project.o, TILE_LANES);
  const int64_t chunks = lesser(ceil_div(pixels, TILE_ROWS), ceil_div(4 * ctx->threads, outputs));
  for (int64_t image = 0; image < s.n; ++image) {
    ty_parallel(ctx, pairs, 1, [&](int64_t begin, int64_t end, int32_t slot) {
      for (int64_t pair = begin; pair < end; ++pair)
        widen(b, {planes + slot * ring, shared + pair * TILE_VECTORS * middle}, {image, 0, s.oh}, 0,
              s.h, pair * TILE_VECTORS);
    });
    ty_parallel(ctx, outputs * chunks, 1, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t at = begin; at < end; ++at) {
        const int64_t chunk = at % chunks, first = chunk * pixels / chunks;
        project(b, shared + first * VF, image, first, (chunk + 1) * pixels / chunks - first,
                at / chunks * TILE_VECTORS);
      }
    });
  }
}

int run(const ty_ctx *ctx, Bottleneck *b, void *workspace) {
  const ConvShape &s = b->wide;
  if (s.n == 0 || s.oh <= 0 || s.ow <= 0 || b->project.o == 0) return 0;
  const bool shares = by_channels(*b, ctx->threads);
  if (shares) {
    b->rows = s.oh;
    b->kept = s.h;
  } else {
    choose_rows(b, ceil_div(s.oh, chunks_of(*b, ctx->threads)));
  }
  TileSegment *segments = static_cast<TileSegment *>(workspace);
  const int64_t expanded = b->expands ? ceil_div(b->expand.c, VF) : 0;
  const int64_t records = expanded + ceil_div(s.c, VF);
  if (b->expands) fill_segments(segments, b->expand, s.h * s.w * VF);
  fill_segments(segments + expanded, b->project, b->rows * s.ow * VF);
  b->expand.segments = segments;
  b->project.segments = segments + expanded;
  const int64_t table_bytes = records * static_cast<int64_t>(sizeof(TileSegment));
  float *const planes = static_cast<float *>(workspace) + ceil_div(table_bytes, 64) * 16;
  if (shares)
    run_by_channels(ctx, *b, planes);
  else
    run_by_rows(ctx, *b, planes);
  return 0;
}

int read_epilogue(const ty_ctx *ctx, const char *name, double lower, double upper, Epilogue *to) {
  *to = {activation_of(name), static_cast<float>(lower), static_cast<float>(upper)};
  return to->activation == ACT_UNKNOWN
             ? ty_fail(ctx, "bottleneck: unknown activation, got '%s'", name)
             : 0;
}

int bottleneck(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
               const ty_attrs *attrs, void *workspace) {
  const ty_bottleneck_attrs &a = *reinterpret_cast<const ty_bottleneck_attrs *>(attrs);
  const double *lower = TY_FLOATS(&a, a.lower), *upper = TY_FLOATS(&a, a.upper);
  Bottleneck b = {};
  b.expands = a.expands;
  const auto data = [&](int index) { return static_cast<const float *>(inputs[index].data); };
  const int first = b.expands ? 3 : 1;  // the depthwise weight
  const int64_t *stride = TY_INTS(&a, a.stride), *padding = TY_INTS(&a, a.padding);
  const int64_t *x = inputs[0].shape, *w = inputs[first].shape, *y = outputs[0].shape;
  b.wide = {x[0], w[0],      x[2],      x[3], w[0], y[2],       y[3],       w[2],
            w[3], stride[0], stride[1], 1,    1,    padding[0], padding[1], w[0]};
  b.x = data(0);
  b.y = static_cast<float *>(outputs[0].data);
  if (b.expands) b.expand = {data(1), data(2), x[1], w[0], {}, ahead_of(ctx), nullptr};
  b.depthwise = data(first);
  b.depthwise_bias = data(first + 1);
  b.project = {data(first + 2), data(first + 3), w[0], y[1], {}, ahead_of(ctx), nullptr};
  if (a.has_residual) b.residual = data(first + 4);
  if (read_epilogue(ctx, TY_STRING(&a, a.expanded), lower[0], upper[0], &b.expand.epilogue) ||
      read_epilogue(ctx, TY_STRING(&a, a.filtered), lower[1], upper[1], &b.after_depthwise) ||
      read_epilogue(ctx, TY_STRING(&a, a.projected), lower[2], upper[2], &b.project.epilogue))
    return 1;
  return run(ctx, &b, workspace);
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(bottleneck, TY_KERNEL(bottleneck, "bottleneck_f32", "expanding"),
                  TY_KERNEL(bottleneck, "bottleneck_f32", "separable"))

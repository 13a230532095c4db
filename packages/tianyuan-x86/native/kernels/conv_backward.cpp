// Gradients of conv2d on plain values in float32, for any stride, padding, dilation and groups.
#include "conv_band.hpp"
#include "conv_shape.hpp"
#include "relayout.hpp"

namespace TY_ISA {
namespace {

// The gradient of the input is, for each phase of the stride, a convolution of the output's
// gradient with the transposed matrices of the taps that reach that phase.
int backward_data(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                  const ty_attrs *attrs, void *workspace) {
  const ty_conv2d_backward_data_attrs &a =
      *reinterpret_cast<const ty_conv2d_backward_data_attrs *>(attrs);
  const ConvShape s = conv_shape(a, outputs[0].shape, inputs[1].shape, inputs[0].shape);
  if (s.n == 0 || s.c == 0 || s.h <= 0 || s.w <= 0) return 0;
  const int64_t c = s.c / s.groups, o = s.o / s.groups, kernel = s.kh * s.kw;
  ConvTap *taps = static_cast<ConvTap *>(workspace);
  float *packed = static_cast<float *>(workspace) + taps_floats(s);
  float *rest = packed + ceil_div(c, VF) * ceil_div(o, VF) * VF * VF * kernel;
  ConvPlan p = {};
  p.groups = 1;
  p.n = s.n;
  p.c = o;
  p.h = s.oh;
  p.w = s.ow;
  p.x_image = s.o * s.oh * s.ow;
  p.weight = packed;
  p.n_weights = kernel;
  p.taps = taps;
  p.sh = p.sw = 1;
  p.o = c;
  p.y_image = s.c * s.h * s.w;
  p.y_channel = s.h * s.w;
  p.y_row = s.sh * s.w;
  p.y_pixel = s.sw;
  for (int64_t group = 0; group < s.groups; ++group) {
    const float *weight = static_cast<const float *>(inputs[1].data) + group * o * c * kernel;
    pack_weight(ctx, packed, weight, {c, o, kernel, kernel, c * kernel});
    p.x = static_cast<const float *>(inputs[0].data) + group * o * s.oh * s.ow;
    float *target = static_cast<float *>(outputs[0].data) + group * c * p.y_channel;
    for (int64_t py = 0; py < s.sh; ++py) {
      for (int64_t px = 0; px < s.sw; ++px) {
        p.n_taps = phase_taps(s, py, px, taps);
        p.oh = ceil_div(s.h - py, s.sh);
        p.ow = ceil_div(s.w - px, s.sw);
        p.y = target + py * s.w + px;
        conv_run(ctx, p, rest);
      }
    }
  }
  return 0;
}

// The gradient of the weight multiplies, for each tap, source pixels (rows of the tile: channels)
// with the output's gradient (lanes: output channels), summed over pixels and images. Images go
// through in chunks, so that their copies stay near.
struct WeightGrad {
  ConvShape s;
  const float *x, *g;
  float *out;
  int64_t c, o, lanes;  // of one group; lanes: o in whole tiles
  ConvPlan source;      // as copy_band sees x
  Band band;
  int64_t plane, chunk;  // floats of a copied channel; images that go through together
  int64_t row_tiles, lane_tiles, tile_floats;
};

// Floats of a chunk of images, and of what one tile reads of it, again for every tap, before it
// turns to further images: that stays in the second-level cache.
enum { CHUNK_FLOATS = 1 << 20, NEAR_FLOATS = 1 << 16 };

WeightGrad weight_grad_of(const ConvShape &s, const ConvTap *taps) {
  WeightGrad w = {};
  w.s = s;
  w.c = s.c / s.groups;
  w.o = s.o / s.groups;
  w.lane_tiles = ceil_div(w.o, TILE_LANES);
  w.lanes = w.lane_tiles * TILE_LANES;
  w.row_tiles = ceil_div(w.c, TILE_ROWS);
  ConvPlan &p = w.source;
  p.c = w.c;
  p.h = s.h;
  p.w = s.w;
  p.x_image = s.c * s.h * s.w;
  p.n_taps = s.kh * s.kw;
  p.taps = taps;
  p.sh = s.sh;
  p.sw = s.sw;
  p.oh = s.oh;
  p.ow = s.ow;
  Band &b = w.band;
  find_spans(p, &b);
  b.copied = true;
  b.phase_width = p.ow + b.span_x / p.sw;
  b.row = p.sw * b.phase_width;
  // An odd number of cache lines between channels spreads them over the cache's sets.
  b.plane = (ceil_div(copied_rows(p, b, p.oh) * b.row, 16) | 1) * 16;
  w.plane = b.plane;
  const int64_t per_image = w.c * w.plane + s.oh * s.ow * w.lanes;
  w.chunk = lesser(greater(s.n, 1), greater(1, CHUNK_FLOATS / (per_image + 1)));
  w.tile_floats = p.n_taps * TILE_ROWS * TILE_LANES;
  return w;
}

// Copies channel `c` of an image of the chunk with its padding.
void copy_source(const WeightGrad &w, float *to, int64_t first, int64_t image, int64_t c) {
  ConvPlan p = w.source;
  p.c = 1;
  p.x += c * p.h * p.w;
  copy_band(to + (image * w.c + c) * w.plane, p, w.band, first + image, 0, p.oh);
}

// Turns the gradient of an image, channels by pixels, into pixels by channels.
void transpose_gradient(const WeightGrad &w, float *to, const float *g, int64_t tile) {
  const int64_t pixels = w.s.oh * w.s.ow;
  for (int64_t lane = 0; lane < TILE_LANES; lane += VF) {
    const int64_t o = tile * TILE_LANES + lane;
    for (int64_t i = 0; i < pixels; i += VF) {
      const int64_t some = lesser(VF, pixels - i);
      vf block[VF];
      vload_columns(block, g + o * pixels + i, pixels, w.o - o, some);
      for (int64_t r = 0; r < some; ++r) vstore(to + (i + r) * TILE_LANES + lane, block[r]);
    }
  }
}

int64_t fill_rows(const WeightGrad &w, TileSegment *table, int64_t images) {
  TileSegment *next = table;
  for (int64_t image = 0; image < images; ++image)
    for (int64_t y = 0; y < w.s.oh; ++y)
      *next++ = {image * w.c * w.plane + y * w.s.sh * w.band.row,
                 (image * w.lane_tiles * w.s.oh + y) * w.s.ow * TILE_LANES, w.s.ow};
  return next - table;
}

// Writes one tile of sums, [tap][row][lane], into the plain gradient.
void store_weights(const WeightGrad &w, const float *sums, int64_t i, int64_t rows, int64_t o,
                   int64_t outputs, int vectors) {
  const int64_t kernel = w.source.n_taps;
  for (int64_t lane = 0; lane < outputs; ++lane) {
    float *to = w.out + ((o + lane) * w.c + i) * kernel;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t t = 0; t < kernel; ++t)
        to[r * kernel + t] = sums[t * TILE_ROWS * TILE_LANES + r * vectors * VF + lane];
  }
}

struct Chunk {
  const float *source, *gradient;
  const TileSegment *table;
  int64_t segments;
  bool first, last;
};

// All taps of one tile of the gradient for one chunk of images.
void run_weight_tile(const WeightGrad &w, const Chunk &chunk, int64_t tile, float *sums) {
  const int64_t lane_tile = tile / w.row_tiles, row_tile = tile % w.row_tiles;
  const int64_t i = row_tile * w.c / w.row_tiles, rows = (row_tile + 1) * w.c / w.row_tiles - i;
  const int64_t o = lane_tile * TILE_LANES, outputs = lesser(TILE_LANES, w.o - o);
  const int vectors = outputs > VF ? 2 : 1;
  const int64_t per_image = rows * w.plane + w.s.oh * w.s.ow * TILE_LANES;
  const int64_t near = greater(1, NEAR_FLOATS / per_image) * w.s.oh;  // segments
  TileArgs t = {};
  t.a_row = w.plane;
  t.a_step = 1;
  t.b = chunk.gradient + lane_tile * w.s.oh * w.s.ow * TILE_LANES;
  t.b_step = TILE_LANES;
  t.b_next = VF;
  t.accumulate = !chunk.first;
  const TileRun run = tile_of(TILE_STRIDED, 1, static_cast<int>(rows), vectors);
  int64_t done = 0;
  do {
    t.segments = chunk.table + done;
    t.n_segments = lesser(near, chunk.segments - done);
    for (int64_t k = 0; k < w.source.n_taps; ++k) {
      t.a = chunk.source + i * w.plane +
            tap_offset(w.source, w.band, w.source.taps[k], pixel_floats(w.source));
      t.c = sums + k * TILE_ROWS * TILE_LANES;
      run(&t);
    }
    t.accumulate = true;
    done += near;
  } while (done < chunk.segments);
  if (chunk.last) store_weights(w, sums, i, rows, o, outputs, vectors);
}

void run_weight_group(const ty_ctx *ctx, const WeightGrad &w, float *workspace) {
  const ConvShape &s = w.s;
  TileSegment *table = reinterpret_cast<TileSegment *>(workspace);
  const int64_t table_bytes = w.chunk * s.oh * static_cast<int64_t>(sizeof(TileSegment));
  float *source = workspace + ceil_div(table_bytes, 64) * 16;
  float *gradient = source + w.chunk * w.c * w.plane;
  float *sums = gradient + w.chunk * s.oh * s.ow * w.lanes;
  const int64_t tiles = w.row_tiles * w.lane_tiles;
  const int64_t tile_pixels = s.oh * s.ow * TILE_LANES;
  // Without images there is one empty chunk, which writes zeros.
  for (int64_t first = 0; first == 0 || first < s.n; first += w.chunk) {
    const int64_t images = lesser(w.chunk, s.n - first);
    ty_parallel(ctx, images * w.c, 1 + 8192 / (w.plane + 1),
                [&](int64_t begin, int64_t end, int32_t) {
                  for (int64_t at = begin; at < end; ++at)
                    copy_source(w, source, first, at / w.c, at % w.c);
                });
    ty_parallel(ctx, images * w.lane_tiles, 1 + 8192 / (tile_pixels + 1),
                [&](int64_t begin, int64_t end, int32_t) {
                  for (int64_t at = begin; at < end; ++at)
                    transpose_gradient(w, gradient + at * tile_pixels,
                                       w.g + (first + at / w.lane_tiles) * s.o * s.oh * s.ow,
                                       at % w.lane_tiles);
                });
    const Chunk chunk = {
        source, gradient, table, fill_rows(w, table, images), first == 0, first + w.chunk >= s.n};
    ty_parallel(ctx, tiles, 1, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t at = begin; at < end; ++at)
        run_weight_tile(w, chunk, at, sums + at * w.tile_floats);
    });
  }
}

int backward_weight(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                    const ty_attrs *attrs, void *workspace) {
  const ty_conv2d_backward_weight_attrs &a =
      *reinterpret_cast<const ty_conv2d_backward_weight_attrs *>(attrs);
  const ConvShape s = conv_shape(a, inputs[0].shape, outputs[0].shape, inputs[1].shape);
  if (s.o == 0 || s.c == 0) return 0;
  ConvTap *taps = static_cast<ConvTap *>(workspace);
  forward_taps(s, taps);
  WeightGrad w = weight_grad_of(s, taps);
  for (int64_t group = 0; group < s.groups; ++group) {
    w.source.x = static_cast<const float *>(inputs[0].data) + group * w.c * s.h * s.w;
    w.g = static_cast<const float *>(inputs[1].data) + group * w.o * s.oh * s.ow;
    w.out = static_cast<float *>(outputs[0].data) + group * w.o * w.c * s.kh * s.kw;
    run_weight_group(ctx, w, static_cast<float *>(workspace) + taps_floats(s));
  }
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(conv_backward, TY_KERNEL(backward_data, "conv2d_backward_data_f32", "plain"),
                  TY_KERNEL(backward_weight, "conv2d_backward_weight_f32", "plain"))

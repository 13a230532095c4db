// Pointwise grouped convolution in float32 on blocked images whose groups do not fill blocks.
//
// The weight of each block of VF outputs holds, for every input channel of the groups that the
// block touches, a vector over the outputs: zero where input and output differ in group.
#include "conv.hpp"

namespace TY_ISA {
namespace {

struct Grouped {
  const float *x, *weight, *bias, *residual;
  float *y;
  int64_t n, c, o, pixels, groups;
  Epilogue epilogue;
};

// A block of outputs: the input channels [first, first + count) and the weight's first vector.
struct Reach {
  int64_t first, count, weight;
};

enum { CHUNK = 8 * TILE_ROWS };  // pixels of one piece of work

Reach reach_of(const Grouped &g, int64_t block) {
  const int64_t inputs = g.c / g.groups, outputs = g.o / g.groups;
  Reach reach = {0, 0, 0};
  for (int64_t at = 0; at <= block; ++at) {
    reach.weight += reach.count;
    const int64_t last = lesser(g.o, (at + 1) * VF) - 1;
    const int64_t group = at * VF / outputs;
    reach.first = group * inputs;
    reach.count = (last / outputs + 1 - group) * inputs;
  }
  return reach;
}

int64_t segments_per_block(const Grouped &g) { return ceil_div(g.c, VF) + 1; }

// Runs of input channels inside blocks of the image, in the order of the weight's vectors.
int64_t fill_segments(TileSegment *to, const Grouped &g, const Reach &reach) {
  int64_t count = 0;
  for (int64_t k = 0; k < reach.count;) {
    const int64_t channel = reach.first + k, lane = channel % VF;
    const int64_t some = lesser(VF - lane, reach.count - k);
    to[count++] = {channel / VF * g.pixels * VF + lane, k * VF, some};
    k += some;
  }
  return count;
}

TY_INLINE void store_pixels(const Grouped &g, const Epilogue &e, const float *acc, int64_t step,
                            int64_t at, int64_t count, vf bias, vm valid) {
  for (int64_t i = 0; i < count; ++i) {
    vf sum = vadd(vload(acc + i * step), bias);
    if (g.residual) sum = vadd(sum, vload(g.residual + at + i * VF));
    vstore(g.y + at + i * VF, vselect(valid, activate(sum, e), vzero()));
  }
}

void store_block(const Grouped &g, const float *acc, int64_t step, int64_t image, int64_t block,
                 int64_t pixel, int64_t count) {
  const int64_t at = ((image * ceil_div(g.o, VF) + block) * g.pixels + pixel) * VF;
  const vtail lanes = vtail_of(g.o - block * VF);
  const vf bias = g.bias ? vload_tail(g.bias + block * VF, lanes) : vzero();
  const vm valid = vtail_mask(lanes);
  const Epilogue e = as_clip(g.epilogue);
  if (e.activation == ACT_CLIP)
    store_pixels(g, {ACT_CLIP, e.lower, e.upper}, acc, step, at, count, bias, valid);
  else
    store_pixels(g, e, acc, step, at, count, bias, valid);
}

struct Segments {
  const TileSegment *data;
  int64_t count;
};

// Pixels [begin, end) of one image, for one block of outputs or two that reach the same inputs.
void run_piece(const Grouped &g, const Reach &reach, const Segments &segments, int64_t image,
               int64_t block, int vectors, int64_t begin, int64_t end) {
  alignas(64) float acc[TILE_ROWS * TILE_LANES];
  TileArgs tile = {};
  tile.b = g.weight + reach.weight * VF;
  tile.b_next = reach.count * VF;
  tile.segments = segments.data;
  tile.n_segments = segments.count;
  tile.a_step = 1;
  tile.b_step = VF;
  tile.c = acc;
  const float *x = g.x + image * ceil_div(g.c, VF) * g.pixels * VF;
  for (int64_t at = begin; at < end; at += TILE_ROWS) {
    const int64_t rows = lesser(TILE_ROWS, end - at);
    tile.a = x + at * VF;
    tile_of(TILE_BLOCK, 1, static_cast<int>(rows), vectors)(&tile);
    for (int v = 0; v < vectors; ++v)
      store_block(g, acc + v * VF, vectors * VF, image, block + v, at, rows);
  }
}

int run(const ty_ctx *ctx, const Grouped &g, void *workspace) {
  const int64_t blocks = ceil_div(g.o, VF), chunks = ceil_div(g.pixels, CHUNK);
  const int64_t pairs = ceil_div(blocks, 2), stride = segments_per_block(g);
  TileSegment *table = static_cast<TileSegment *>(workspace);
  for (int64_t block = 0; block < blocks; ++block)
    fill_segments(table + block * stride, g, reach_of(g, block));
  ty_parallel(ctx, g.n * pairs * chunks, 1, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t first = at / chunks % pairs * 2, image = at / chunks / pairs;
      const int64_t from = at % chunks * CHUNK, to = lesser(g.pixels, from + CHUNK);
      for (int64_t block = first; block < lesser(blocks, first + 2);) {
        const Reach reach = reach_of(g, block), next = reach_of(g, block + 1);
        const bool both = block == first && block + 1 < blocks && next.first == reach.first &&
                          next.count == reach.count;
        Segments segments = {table + block * stride, 0};
        for (int64_t k = 0; k < reach.count; ++segments.count)
          k += segments.data[segments.count].count;
        run_piece(g, reach, segments, image, block, both ? 2 : 1, from, to);
        block += both ? 2 : 1;
      }
    }
  });
  return 0;
}

Grouped grouped_of(const ty_tensor *inputs, const ty_tensor &y, int64_t groups) {
  Grouped g = {};
  g.x = static_cast<const float *>(inputs[0].data);
  g.weight = static_cast<const float *>(inputs[1].data);
  g.y = static_cast<float *>(y.data);
  g.n = y.shape[0];
  g.c = inputs[0].shape[1];
  g.o = y.shape[1];
  g.pixels = y.shape[2] * y.shape[3];
  g.groups = groups;
  return g;
}

int conv2d(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
           void *workspace) {
  const auto *a = reinterpret_cast<const ty_conv2d_attrs *>(attrs);
  return run(ctx, grouped_of(inputs, outputs[0], a->groups), workspace);
}

int conv2d_fused(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                 const ty_attrs *attrs, void *workspace) {
  const auto *a = reinterpret_cast<const ty_conv2d_fused_attrs *>(attrs);
  Grouped g = grouped_of(inputs, outputs[0], a->groups);
  int next = 2;
  if (a->has_bias) g.bias = static_cast<const float *>(inputs[next++].data);
  if (a->has_residual) g.residual = static_cast<const float *>(inputs[next].data);
  const char *name = TY_STRING(a, a->activation);
  g.epilogue = {activation_of(name), static_cast<float>(a->lower), static_cast<float>(a->upper)};
  if (g.epilogue.activation == ACT_UNKNOWN)
    return ty_fail(ctx, "conv2d_fused: unknown activation, got '%s'", name);
  return run(ctx, g, workspace);
}

}  // namespace
}  // namespace TY_ISA

#define GROUPED(count)                                \
  TY_KERNEL(conv2d, "conv2d_f32", "grouped_" #count), \
      TY_KERNEL(conv2d_fused, "conv2d_fused_f32", "grouped_" #count)

TY_EXPORT_KERNELS(conv_grouped, GROUPED(2), GROUPED(3), GROUPED(4), GROUPED(8))

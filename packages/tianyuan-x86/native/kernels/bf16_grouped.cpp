// Pointwise grouped convolution in bfloat16 on blocked images whose groups do not fill blocks.
//
// The weight of each block of 16 outputs holds, for every pair of input channels of the groups that
// the block touches, words over the outputs: zero where input and output differ in group. Groups
// have an even number of inputs, so that pairs lie in one group and one block.
#include "bf16_conv.hpp"
#include "conv_shape.hpp"

namespace TY_ISA {
namespace {

struct Grouped {
  const uint16_t *x, *residual;
  const float *weight, *bias;
  uint16_t *y;
  int64_t n, c, o, pixels, groups;
  Epilogue epilogue;
};

// A block of outputs: the input channels [first, first + count) and the weight's first channel.
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

// Runs of input channels inside blocks of the image, in the order of the weight's vectors.
int64_t fill_segments(TileSegment *to, const Grouped &g, const Reach &reach) {
  int64_t count = 0;
  for (int64_t k = 0; k < reach.count;) {
    const int64_t channel = reach.first + k, lane = channel % VF;
    const int64_t some = lesser(VF - lane, reach.count - k);
    to[count++] = {2 * (channel / VF * g.pixels * VF + lane), k / 2 * VF, some / 2};
    k += some;
  }
  return count;
}

// Pixels [begin, end) of one image, for one block of outputs or two that reach the same inputs.
void run_piece(const Grouped &g, const Reach &reach, PairTile *tile, int64_t image, int64_t block,
               int vectors, int64_t begin, int64_t end) {
  tile->b = g.weight + reach.weight / 2 * VF;
  tile->b_next = reach.count / 2 * VF;
  tile->bias = g.bias ? g.bias + block * VF : nullptr;
  for (int v = 0; v < vectors; ++v) tile->valid[v] = vtail_of(g.o - (block + v) * VF);
  const uint16_t *x = g.x + image * ceil_div(g.c, VF) * g.pixels * VF;
  const int64_t y = (image * ceil_div(g.o, VF) + block) * g.pixels * VF;
  const int64_t tiles = ceil_div(end - begin, TILE_ROWS);
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t from = begin + t * (end - begin) / tiles;
    const int64_t to = begin + (t + 1) * (end - begin) / tiles;
    tile->a = reinterpret_cast<const char *>(x + from * VF);
    tile->y = g.y + y + from * VF;
    tile->residual = g.residual ? g.residual + y + from * VF : nullptr;
    pair_tile_of(PAIR_BLOCKS, 1, static_cast<int>(to - from), vectors)(tile);
  }
}

int run(const ty_ctx *ctx, const Grouped &g, void *workspace) {
  const int64_t blocks = ceil_div(g.o, VF), chunks = ceil_div(g.pixels, CHUNK);
  const int64_t pairs = ceil_div(blocks, 2), stride = ceil_div(g.c, VF) + 1;
  TileSegment *table = static_cast<TileSegment *>(workspace);
  for (int64_t block = 0; block < blocks; ++block)
    fill_segments(table + block * stride, g, reach_of(g, block));
  ty_parallel(ctx, g.n * pairs * chunks, 1, [&](int64_t begin, int64_t end, int32_t) {
    PairTile tile = {};
    tile.b_step = VF;
    tile.y_next = g.pixels * VF;
    tile.epilogue = g.epilogue;
    for (int64_t at = begin; at < end; ++at) {
      const int64_t first = at / chunks % pairs * 2, image = at / chunks / pairs;
      const int64_t chunk = at % chunks;
      const int64_t from = chunk * g.pixels / chunks, to = (chunk + 1) * g.pixels / chunks;
      for (int64_t block = first; block < lesser(blocks, first + 2);) {
        const Reach reach = reach_of(g, block), next = reach_of(g, block + 1);
        const bool both = block == first && block + 1 < blocks && next.first == reach.first &&
                          next.count == reach.count;
        tile.segments = table + block * stride;
        tile.n_segments = 0;
        for (int64_t k = 0; k < reach.count; ++tile.n_segments)
          k += 2 * tile.segments[tile.n_segments].count;
        run_piece(g, reach, &tile, image, block, both ? 2 : 1, from, to);
        block += both ? 2 : 1;
      }
    }
  });
  return 0;
}

Grouped grouped_of(const ty_tensor *inputs, const ty_tensor &y, int64_t groups) {
  Grouped g = {};
  g.x = static_cast<const uint16_t *>(inputs[0].data);
  g.weight = static_cast<const float *>(inputs[1].data);
  g.y = static_cast<uint16_t *>(y.data);
  g.n = y.shape[0];
  g.c = inputs[0].shape[1];
  g.o = y.shape[1];
  g.pixels = y.shape[2] * y.shape[3];
  g.groups = groups;
  g.epilogue = as_clip({ACT_IDENTITY, 0.0f, 0.0f});
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
  if (read_epilogue(ctx, *a, inputs, &g)) return 1;
  g.epilogue = as_clip(g.epilogue);
  return run(ctx, g, workspace);
}

}  // namespace
}  // namespace TY_ISA

#define GROUPED(count)                                 \
  TY_KERNEL(conv2d, "conv2d_bf16", "grouped_" #count), \
      TY_KERNEL(conv2d_fused, "conv2d_fused_bf16", "grouped_" #count)

TY_EXPORT_KERNELS(bf16_grouped, GROUPED(2), GROUPED(3), GROUPED(4), GROUPED(8))

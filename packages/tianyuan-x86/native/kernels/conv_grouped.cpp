// Pointwise grouped convolution on blocked images whose groups do not fill blocks, in either
// element.
//
// The weight of each block of VF outputs holds, for every group that the block touches and every
// input of it, in bfloat16 every pair of inputs, a vector over the outputs: zero where input and
// output differ in group. Infinity times zero is no zero, so each group is summed by itself and
// gives no more than its own lanes. In bfloat16, groups have an even number of inputs, so that
// pairs lie in one group and one block.
#include "bands.hpp"
#include "conv_shape.hpp"
#include "element.hpp"
#if defined(__AVX512BF16__)
#include "bf16.hpp"
#endif

namespace TY_ISA {
namespace {

struct Grouped {
  const element *x, *residual;
  const float *weight, *bias;
  element *y;
  int64_t n, c, o, pixels, groups, inputs, outputs;  // the last two of a group
  Epilogue epilogue;
};

// One block of outputs, or two of the same group: the groups [first, end) that it touches, and how
// often blocks before it touch a group.
struct Unit {
  int64_t block, vectors, first, end, before;
};

// What one group gives to a unit: lanes [begin, end), or the whole unit.
struct Part {
  int64_t block, vectors, begin, end;
  bool whole;
  const float *weight;
  const TileSegment *segments;
  int64_t n_segments;
};

enum { CHUNK = 8 * TILE_ROWS };  // pixels of one piece of work

int64_t fill_units(Unit *units, const Grouped &g) {
  int64_t count = 0, before = 0;
  for (int64_t block = 0; block * VF < g.o; ++block) {
    const int64_t first = block * VF / g.outputs;
    const int64_t end = (lesser(g.o, (block + 1) * VF) - 1) / g.outputs + 1;
    Unit *last = units + count - 1;
    if (count && last->vectors == 1 && last->first == first && last->end == end)
      last->vectors = 2;
    else
      units[count++] = {block, 1, first, end, before};
    before += end - first;
  }
  return count;
}

// Segments of one group: no more than it has blocks, two of them in part.
int64_t segments_per_group(const Grouped &g) { return ceil_div(g.inputs, VF) + 1; }

// Runs of the group's channels inside blocks of the image; offsets in x are in floats, in bfloat16
// in bytes. Returns how many there are.
int64_t fill_segments(TileSegment *to, const Grouped &g, int64_t group) {
  int64_t count = 0;
  for (int64_t k = 0; k < g.inputs;) {
    const int64_t channel = group * g.inputs + k, lane = channel % VF;
    const int64_t some = lesser(VF - lane, g.inputs - k);
    to[count++] = {TERMS * (channel / VF * g.pixels * VF + lane), k / TERMS * VF, some / TERMS};
    k += some;
  }
  return count;
}

vm lanes_of(const Part &p) {
  return vm_and(vtail_mask(vtail_of(p.end)), vm_not(vtail_mask(vtail_of(p.begin))));
}

// Cuts pixels into tiles of nearly equal height: body(first pixel, height).
template <typename Body>
void for_tiles(int64_t pixels, const Body &body) {
  const int64_t tiles = ceil_div(pixels, TILE_ROWS);
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t from = t * pixels / tiles;
    body(from, static_cast<int>((t + 1) * pixels / tiles - from));
  }
}

#if defined(__AVX512BF16__)

// `pixels` pixels from x and at of the result.
void run_part(const Grouped &g, const Part &p, const element *x, int64_t at, int64_t pixels) {
  PairTile tile = {};
  tile.segments = p.segments;
  tile.n_segments = p.n_segments;
  tile.b = p.weight;
  tile.b_step = VF;
  tile.b_next = g.inputs / TERMS * VF;
  tile.bias = g.bias ? g.bias + p.block * VF : nullptr;
  for (int64_t v = 0; v < p.vectors; ++v) tile.valid[v] = vtail_of(g.o - (p.block + v) * VF);
  tile.written[0] = lanes_of(p);
  tile.y_next = g.pixels * VF;
  tile.epilogue = as_clip(g.epilogue);
  for_tiles(pixels, [&](int64_t from, int rows) {
    const int64_t to = at + from * VF;
    tile.a = reinterpret_cast<const char *>(x + from * VF);
    tile.y = g.y + to;
    tile.residual = g.residual ? g.residual + to : nullptr;
    pair_tile_of(p.whole ? PAIR_BLOCKS : PAIR_LANES, 1, rows, static_cast<int>(p.vectors))(&tile);
  });
}

#else

// Finishes the sums of `count` pixels and stores the lanes of the part.
TY_INLINE void store_lanes(const Grouped &g, const Part &p, const Epilogue &e, const float *sums,
                           int64_t v, int64_t at, int64_t count) {
  const int64_t first = (p.block + v) * VF;
  const vtail lanes = vtail_of(g.o - first);
  const vm valid = vtail_mask(lanes);
  const vm own = lanes_of(p);
  const vf bias = g.bias ? vload_tail(g.bias + first, lanes) : vzero();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t to = at + v * g.pixels * VF + i * VF;
    vf sum = vadd(vload(sums + (i * p.vectors + v) * VF), bias);
    if (g.residual) sum = vadd(sum, vload(g.residual + to));
    sum = activate(sum, e);
    vstore(g.y + to, vselect(own, vselect(valid, sum, vzero()), vload(g.y + to)));
  }
}

void store_part(const Grouped &g, const Part &p, const float *sums, int64_t at, int64_t count) {
  const Epilogue e = as_clip(g.epilogue);
  for (int64_t v = 0; v < p.vectors; ++v) {
    if (e.activation == ACT_CLIP)
      store_lanes(g, p, {ACT_CLIP, e.lower, e.upper}, sums, v, at, count);
    else
      store_lanes(g, p, e, sums, v, at, count);
  }
}

// Whether a tile may finish its sums itself, which are only bounded.
bool begin_out(const Grouped &g, const Part &p, TileOut *out) {
  const Epilogue bounds = as_clip(g.epilogue);
  out->next = g.pixels * VF;
  out->lanes = g.o - p.block * VF;
  out->lower = bounds.lower;
  out->upper = bounds.upper;
  for (int64_t v = 0; v < p.vectors && g.bias; ++v) {
    const int64_t channel = (p.block + v) * VF;
    vstore(out->bias + v * VF, vload_tail(g.bias + channel, vtail_of(g.o - channel)));
  }
  return p.whole && bounds.activation == ACT_CLIP;
}

void run_part(const Grouped &g, const Part &p, const element *x, int64_t at, int64_t pixels) {
  enum { HALF = VF / 2 };
  alignas(64) float sums[TILE_ROWS * TILE_LANES + HALF];
  const int vectors = static_cast<int>(p.vectors);
  TileOut out = {};
  const bool finishes = begin_out(g, p, &out);
  // Lanes in one half of a vector are summed alone, which costs less.
  const bool narrow = VF == 16 && !p.whole && (p.end <= HALF || p.begin >= HALF);
  const int64_t skipped = narrow && p.begin >= HALF ? HALF : 0;
  const int64_t lanes = g.o - (p.block + vectors - 1) * VF;
  TileArgs tile = {};
  tile.segments = p.segments;
  tile.n_segments = p.n_segments;
  tile.b = p.weight + skipped;
  tile.a_step = 1;
  tile.b_step = VF;
  tile.b_next = g.inputs * VF;
  tile.c = sums + skipped;
  tile.out = finishes ? &out : nullptr;
  for_tiles(pixels, [&](int64_t from, int rows) {
    const int64_t to = at + from * VF;
    tile.a = x + from * VF;
    out.y = g.y + to;
    out.residual = g.residual ? g.residual + to : nullptr;
    tile_of(TILE_BLOCK, 1, rows, vectors, narrow ? int64_t{HALF} : lanes)(&tile);
    if (!finishes) store_part(g, p, sums, to, rows);
  });
}

#endif

// Pixels [begin, end) of one image; `table` has the segments of all groups.
void run_piece(const Grouped &g, const Unit &u, const TileSegment *table, int64_t image,
               int64_t begin, int64_t end) {
  const element *x = g.x + (image * blocks_of(g.c) * g.pixels + begin) * VF;
  const int64_t at = ((image * blocks_of(g.o) + u.block) * g.pixels + begin) * VF;
  for (int64_t group = u.first; group < u.end; ++group) {
    const bool last = group + 1 == u.end;  // writes the zeros behind the last channel too
    Part p = {u.block,
              u.vectors,
              greater(0, group * g.outputs - u.block * VF),
              last ? int64_t{VF} : (group + 1) * g.outputs - u.block * VF,
              u.end - u.first == 1,
              nullptr,
              table + group * segments_per_group(g),
              0};
    p.weight = g.weight + (u.before + group - u.first) * (g.inputs / TERMS) * VF;
    for (int64_t k = 0; k < g.inputs; ++p.n_segments) k += TERMS * p.segments[p.n_segments].count;
    run_part(g, p, x, at, end - begin);
  }
}

int run(const ty_ctx *ctx, const Grouped &g, void *workspace) {
  const int64_t bands = bands_of(ctx, ceil_div(g.pixels, TILE_ROWS), g.pixels);
  const int64_t chunks = ceil_div(g.pixels, bands * CHUNK), pieces = bands * chunks;
  Unit *const units = static_cast<Unit *>(workspace);
  TileSegment *const table = reinterpret_cast<TileSegment *>(units + blocks_of(g.o));
  const int64_t count = fill_units(units, g);
  for (int64_t group = 0; group < g.groups; ++group)
    fill_segments(table + group * segments_per_group(g), g, group);
  ty_parallel(ctx, g.n * count * pieces, 1, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t band = at / chunks / count, piece = band % bands * chunks + at % chunks;
      run_piece(g, units[at / chunks % count], table, band / bands, piece * g.pixels / pieces,
                (piece + 1) * g.pixels / pieces);
    }
  });
  return 0;
}

Grouped grouped_of(const ty_tensor *inputs, const ty_tensor &y, int64_t groups) {
  Grouped g = {};
  g.x = static_cast<const element *>(inputs[0].data);
  g.weight = static_cast<const float *>(inputs[1].data);
  g.y = static_cast<element *>(y.data);
  g.n = y.shape[0];
  g.c = inputs[0].shape[1];
  g.o = y.shape[1];
  g.pixels = y.shape[2] * y.shape[3];
  g.groups = groups;
  g.inputs = g.c / groups;
  g.outputs = g.o / groups;
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
  return run(ctx, g, workspace);
}

}  // namespace
}  // namespace TY_ISA

#define GROUPED(count)                                        \
  TY_KERNEL(conv2d, "conv2d_" TY_ELEMENT, "grouped_" #count), \
      TY_KERNEL(conv2d_fused, "conv2d_fused_" TY_ELEMENT, "grouped_" #count)

TY_EXPORT_KERNELS(conv_grouped, GROUPED(2), GROUPED(3), GROUPED(4), GROUPED(8))

// Pointwise grouped convolution in float32 on blocked images whose groups do not fill blocks.
//
// The weight of each block of VF outputs holds, for every input channel of the groups that the
// block touches, a vector over the outputs: zero where input and output differ in group.
#include "conv.hpp"
#include "conv_shape.hpp"

namespace TY_ISA {
namespace {

struct Grouped {
  const float *x, *weight, *bias, *residual;
  float *y;
  int64_t n, c, o, pixels, groups;
  Epilogue epilogue;
};

// The input channels [first, first + count) of the groups of some outputs.
struct Reach {
  int64_t first, count;
};

// One block of outputs or two that reach the same inputs, and the weight's first vector.
struct Job {
  int64_t block, vectors, weight;
  Reach reach;
};

enum { CHUNK = 8 * TILE_ROWS };  // pixels of one piece of work
enum { HALF = VF / 2, LISTS = 3 };

Reach reach_of(const Grouped &g, int64_t begin, int64_t end) {
  const int64_t inputs = g.c / g.groups, outputs = g.o / g.groups;
  const int64_t group = begin / outputs, last = (lesser(g.o, end) - 1) / outputs;
  return {group * inputs, (last + 1 - group) * inputs};
}

bool same(const Reach &a, const Reach &b) { return a.first == b.first && a.count == b.count; }

int64_t fill_jobs(Job *jobs, const Grouped &g) {
  int64_t count = 0, weight = 0;
  for (int64_t block = 0; block * VF < g.o; ++block) {
    const Reach reach = reach_of(g, block * VF, (block + 1) * VF);
    if (count && jobs[count - 1].vectors == 1 && same(jobs[count - 1].reach, reach))
      jobs[count - 1].vectors = 2;
    else
      jobs[count++] = {block, 1, weight, reach};
    weight += reach.count;
  }
  return count;
}

// Halves of a block that reach different groups are summed apart, so that fewer of their weights
// are zeros.
struct Halves {
  bool apart;
  Reach reach[2];
};

Halves halves_of(const Grouped &g, const Job &job) {
  const int64_t begin = job.block * VF, middle = begin + HALF;
  if (VF != 16 || job.vectors != 1 || middle >= g.o) return {false, {}};
  const Reach low = reach_of(g, begin, middle), high = reach_of(g, middle, begin + VF);
  return {!same(low, high), {low, high}};
}

// Lists of segments: of a block, and of its halves.
int64_t segments_per_list(const Grouped &g) { return ceil_div(g.c, VF) + 1; }

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

// Whether a tile may finish its sums itself, which are only bounded.
bool begin_out(const Grouped &g, const Job &job, TileOut *out) {
  const Epilogue bounds = as_clip(g.epilogue);
  out->next = g.pixels * VF;
  out->lanes = g.o - job.block * VF;
  out->lower = bounds.lower;
  out->upper = bounds.upper;
  for (int64_t v = 0; v < job.vectors && g.bias; ++v) {
    const int64_t channel = (job.block + v) * VF;
    vstore(out->bias + v * VF, vload_tail(g.bias + channel, vtail_of(g.o - channel)));
  }
  return bounds.activation == ACT_CLIP && bounds.lower <= 0.0f && bounds.upper >= 0.0f;
}

int64_t count_segments(const TileSegment *segments, const Reach &reach) {
  int64_t count = 0;
  for (int64_t k = 0; k < reach.count; ++count) k += segments[count].count;
  return count;
}

// Sums of both halves of a block, each over its own inputs, side by side in `tile->c`.
void sum_halves(TileArgs *tile, const Job &job, const Halves &halves, const TileSegment *segments,
                int64_t stride, int64_t rows) {
  alignas(64) float high[TILE_ROWS * VF];
  const float *weight = tile->b;
  float *const low = tile->c;
  for (int half = 0; half < 2; ++half) {
    const Reach &reach = halves.reach[half];
    tile->b = weight + (reach.first - job.reach.first) * VF + half * HALF;
    tile->segments = segments + (1 + half) * stride;
    tile->n_segments = count_segments(tile->segments, reach);
    tile->c = half ? high : low;
    tile_of(TILE_BLOCK, 1, static_cast<int>(rows), 1, HALF)(tile);
  }
  tile->b = weight;
  tile->c = low;
  for (int64_t i = 0; i < rows; ++i)
    memcpy(low + i * VF + HALF, high + i * VF, HALF * sizeof(float));
}

// Pixels [begin, end) of one image.
void run_piece(const Grouped &g, const Job &job, const TileSegment *segments, int64_t stride,
               int64_t image, int64_t begin, int64_t end) {
  alignas(64) float acc[TILE_ROWS * TILE_LANES];
  const int vectors = static_cast<int>(job.vectors);
  const Halves halves = halves_of(g, job);
  TileArgs tile = {};
  tile.b = g.weight + job.weight * VF;
  tile.b_next = job.reach.count * VF;
  tile.segments = segments;
  tile.n_segments = count_segments(segments, job.reach);
  tile.a_step = 1;
  tile.b_step = VF;
  tile.c = acc;
  const int64_t lanes = g.o - (job.block + vectors - 1) * VF;
  const float *x = g.x + image * ceil_div(g.c, VF) * g.pixels * VF;
  const int64_t plane = (image * ceil_div(g.o, VF) + job.block) * g.pixels * VF;
  TileOut out = {};
  const bool finishes = !halves.apart && begin_out(g, job, &out);
  for (int64_t at = begin; at < end; at += TILE_ROWS) {
    const int64_t rows = lesser(TILE_ROWS, end - at);
    tile.a = x + at * VF;
    if (halves.apart) {
      sum_halves(&tile, job, halves, segments, stride, rows);
    } else {
      out.y = g.y + plane + at * VF;
      out.residual = g.residual ? g.residual + plane + at * VF : nullptr;
      tile.out = finishes ? &out : nullptr;
      tile_of(TILE_BLOCK, 1, static_cast<int>(rows), vectors, lanes)(&tile);
    }
    for (int v = 0; v < vectors && !tile.out; ++v)
      store_block(g, acc + v * VF, vectors * VF, image, job.block + v, at, rows);
  }
}

int run(const ty_ctx *ctx, const Grouped &g, void *workspace) {
  const int64_t blocks = ceil_div(g.o, VF), chunks = ceil_div(g.pixels, CHUNK);
  const int64_t stride = segments_per_list(g);
  Job *const jobs = static_cast<Job *>(workspace);
  TileSegment *const table = reinterpret_cast<TileSegment *>(jobs + blocks);
  const int64_t count = fill_jobs(jobs, g);
  for (int64_t at = 0; at < count; ++at) {
    TileSegment *lists = table + at * LISTS * stride;
    const Halves halves = halves_of(g, jobs[at]);
    fill_segments(lists, g, jobs[at].reach);
    for (int half = 0; half < 2 && halves.apart; ++half)
      fill_segments(lists + (1 + half) * stride, g, halves.reach[half]);
  }
  ty_parallel(ctx, g.n * count * chunks, 1, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t job = at / chunks % count, from = at % chunks * CHUNK;
      run_piece(g, jobs[job], table + job * LISTS * stride, stride, at / chunks / count, from,
                lesser(g.pixels, from + CHUNK));
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
  if (read_epilogue(ctx, *a, inputs, &g)) return 1;
  return run(ctx, g, workspace);
}

}  // namespace
}  // namespace TY_ISA

#define GROUPED(count)                                \
  TY_KERNEL(conv2d, "conv2d_f32", "grouped_" #count), \
      TY_KERNEL(conv2d_fused, "conv2d_fused_f32", "grouped_" #count)

TY_EXPORT_KERNELS(conv_grouped, GROUPED(2), GROUPED(3), GROUPED(4), GROUPED(8))

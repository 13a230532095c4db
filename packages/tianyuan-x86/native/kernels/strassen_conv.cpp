// conv2d and conv2d_fused in float32 for 1 x 1 kernels on blocked images, by one level of
// Strassen's method: pixels are the rows of the product, channels its terms and columns. The weight
// lies as for the direct convolution.
#include "conv_call.hpp"
#include "strassen.hpp"

namespace TY_ISA {
namespace {

// Pixels of a unit, two halves of whole tiles whose sums meet, and floats of operands that a block
// holds; src/tianyuan_x86/kernels/strassen_conv.py knows the same. Short rows of a tile have to
// come from the second cache.
#if TY_VF == 16
enum { UNIT_PIXELS = 14 * TILE_ROWS, BLOCK_FLOATS = 352 * 1024 };
#else
enum { UNIT_PIXELS = 34 * TILE_ROWS, BLOCK_FLOATS = 192 * 1024 };
#endif

// A call. A row is a pixel of the upper half of a unit and that of the lower half below it; rows
// are numbered unit by unit.
struct Job {
  Call call;
  int64_t pixels, rows, units;  // of an image
  int64_t c_blocks;             // blocks of channels of a quarter
  int64_t o_blocks, pairs;      // blocks and panels of outputs of a quarter
  int64_t x_plane, y_plane;     // floats between blocks of channels
  bool gathers;                 // neighbouring pixels of the result are none of the input
  bool smooth;                  // more than bounds follows
  TileOut out;
};

// Rows that follow one another in a unit: their first pixel in the upper half, and how far away the
// lower half is.
struct Piece {
  int64_t pixel, half, rows;
};

Piece piece_of(const Job &job, int64_t row, int64_t end) {
  const int64_t unit = ((row + 1) * job.units - 1) / job.rows;
  const int64_t first = job.rows * unit / job.units, behind = job.rows * (unit + 1) / job.units;
  return {first + row, behind - first, lesser(end, behind) - row};
}

// A left operand.
struct Operand {
  const float *at;  // of the first pixel
  const TileSegment *segments;
  bool in_place, lower;  // pixels of the input, and which half of them
};

// Rows [r0, r1) of an image.
struct Work {
  const Job &job;
  int64_t image, r0, r1;
  Operand operands[PRODUCTS];
  float *p, *w, *tile;
  float *sums[4];  // of quarters of two panels of the weight
};

// The sums of quarters of some rows, and the quarters where their pixels are gathered.
template <bool GATHERS>
void add_quarters(const Work &work, const Piece &piece, float *to, int64_t size) {
  const Job &job = work.job;
  const ConvShape &s = job.call.shape;
  int64_t offsets[UNIT_PIXELS];
  for (int64_t i = 0; GATHERS && i < 2 * piece.rows; ++i) {
    const int64_t pixel = piece.pixel + i / 2 + i % 2 * piece.half;
    offsets[i] = (pixel / s.ow * s.sh * s.w + pixel % s.ow * s.sw) * VF;
  }
  const float *left = job.call.x + work.image * 2 * job.c_blocks * job.x_plane;
  if (!GATHERS) left += piece.pixel * VF;
  const float *right = left + job.c_blocks * job.x_plane;
  for (int64_t block = 0; block < job.c_blocks; ++block) {
    for (int64_t i = 0; i < piece.rows; ++i) {
      const int64_t upper = GATHERS ? offsets[2 * i] : i * VF;
      const int64_t lower = GATHERS ? offsets[2 * i + 1] : (piece.half + i) * VF;
      const vf x11 = vload(left + upper), x12 = vload(right + upper);
      const vf x21 = vload(left + lower), x22 = vload(right + lower);
      const vf y1 = vadd(x21, x22), y2 = vsub(y1, x11);
      float *const at = to + i * VF;
      vstore(at, y1);
      vstore(at + size, y2);
      vstore(at + 2 * size, vsub(x21, x11));
      vstore(at + 3 * size, vsub(x12, y2));
      if (!GATHERS) continue;
      vstore(at + 4 * size, x11);
      vstore(at + 5 * size, x12);
      vstore(at + 6 * size, x22);
    }
    left += job.x_plane;
    right += job.x_plane;
    to += (work.r1 - work.r0) * VF;
  }
}

TileSegment *fill_table(TileSegment *table, const Job &job, int64_t plane) {
  for (int64_t i = 0; i < job.c_blocks; ++i) table[i] = {i * plane, i * VF * VF, VF};
  return table;
}

void find_operands(Work *work, TileSegment *tables, float *sums) {
  const Job &job = work->job;
  const int64_t plane = (work->r1 - work->r0) * VF, size = job.c_blocks * plane;
  for (int64_t row = work->r0; row < work->r1;) {
    const Piece piece = piece_of(job, row, work->r1);
    float *const to = sums + (row - work->r0) * VF;
    if (job.gathers)
      add_quarters<true>(*work, piece, to, size);
    else
      add_quarters<false>(*work, piece, to, size);
    row += piece.rows;
  }
  const TileSegment *const summed = fill_table(tables, job, plane);
  const int products[] = {S1, S2, S3, S4, A11, A12, A22};
  for (int i = 0; i < PRODUCTS; ++i)
    work->operands[products[i]] = {sums + i * size, summed, false, false};
  if (job.gathers) return;
  const TileSegment *const input = fill_table(tables + job.c_blocks, job, job.x_plane);
  const float *const left = job.call.x + work->image * 2 * job.c_blocks * job.x_plane;
  const float *const right = left + job.c_blocks * job.x_plane;
  work->operands[A11] = {left, input, true, false};
  work->operands[A12] = {right, input, true, false};
  work->operands[A22] = {right, input, true, true};
}

// Where a quarter of the results of a pair of panels goes.
struct Place {
  int64_t block, at;  // first block of outputs, and floats to it
  bool lower;
  int vectors;
};

Place place_of(const Work &work, int64_t pair, bool lower, bool right) {
  const Job &job = work.job;
  const int64_t first = pair * TILE_VECTORS, block = first + (right ? job.o_blocks : 0);
  const int64_t at = (work.image * 2 * job.o_blocks + block) * job.y_plane;
  return {block, at, lower, static_cast<int>(lesser(TILE_VECTORS, job.o_blocks - first))};
}

// y = activation(from + plus + ...) of one tile.
void finish_smooth(const Job &job, const Place &place, const Piece &run, const float *from,
                   const float *plus) {
  const Call &call = job.call;
  const int64_t first = place.at + (run.pixel + (place.lower ? run.half : 0)) * VF;
  for (int v = 0; v < place.vectors; ++v) {
    const int64_t at = first + v * job.y_plane;
    const vf bias = call.bias ? vload(call.bias + (place.block + v) * VF) : vzero();
    for (int64_t i = 0; i < run.rows; ++i) {
      const int64_t sum = (i * place.vectors + v) * VF;
      vf x = vload(from + sum);
      if (plus) x = vadd(x, vload(plus + sum));
      x = vadd(x, bias);
      if (call.residual) x = vadd(x, vload(call.residual + at + i * VF));
      vstore(call.y + at + i * VF, activate_smooth(x, call.epilogue.activation));
    }
  }
}

// One product for all tiles of pixels: the first one makes a sum of panels, the last one brings
// near what `next` points to, in the form of the right operand.
void run_turn(const Work &work, const Turn &turn, const float *const *panels, const float *next,
              int64_t pair) {
  const Job &job = work.job;
  const Call &call = job.call;
  const Operand &a = work.operands[turn.left];
  const float *const b = panels[turn.right];
  // The sums of the last turn into P, with W added, are the lower right results.
  const bool also = turn.left == S3, leaves = turn.to == TO_RESULT || also;
  const Place place = place_of(work, pair, turn.lower_rows || also, turn.right_columns || also);
  TileOut out = job.out;
  for (int v = 0; v < place.vectors && call.bias; ++v)
    vstore(out.bias + v * VF, vload(call.bias + (place.block + v) * VF));
  TileArgs t = {};
  t.segments = a.segments;
  t.n_segments = job.c_blocks;
  t.a_step = 1;
  t.b = b;
  t.b_step = VF;
  t.b_next = 2 * job.c_blocks * VF * VF;
  t.difference = work.sums[turn.difference - T1];
  t.accumulate = turn.from_p;
  t.out = leaves && !job.smooth ? &out : nullptr;
  for (int64_t row = work.r0; row < work.r1;) {
    const Piece piece = piece_of(job, row, work.r1);
    const int64_t tiles = ceil_div(piece.rows, TILE_ROWS);
    for (int64_t at = 0; at < tiles; ++at) {
      const int64_t begin = piece.rows * at / tiles, end = piece.rows * (at + 1) / tiles;
      const Piece run = {piece.pixel + begin, piece.half, end - begin};
      float *const p = work.p + (row - work.r0) * TILE_LANES;
      float *const w = work.w + (row - work.r0) * TILE_LANES;
      t.a = a.at + (a.in_place ? run.pixel + (a.lower ? run.half : 0) : row - work.r0) * VF;
      t.minuend = turn.makes && row == work.r0 ? panels[turn.minuend] : nullptr;
      t.ahead = next && row + run.rows == work.r1 ? next - b : 0;
      t.from = turn.from_p ? p : nullptr;
      t.plus = turn.plus_w ? w : nullptr;
      t.c = turn.to == TO_P ? p : turn.to == TO_W ? w : work.tile;
      if (t.out) {
        const int64_t y = place.at + (run.pixel + (place.lower ? run.half : 0)) * VF;
        out.y = call.y + y;
        out.residual = call.residual ? call.residual + y : nullptr;
        out.sums = also ? p : nullptr;
        out.plus = w;
      }
      tile_of(TILE_BLOCK, 1, static_cast<int>(run.rows), place.vectors)(&t);
      if (leaves && job.smooth) finish_smooth(job, place, run, t.c, also ? w : nullptr);
      row += run.rows;
    }
  }
}

// The four panels of the result that belong to pair `pair`. Of the weight's panels of the next
// pair, four products bring one near each.
void run_pair(const Work &work, int64_t pair, bool fetches) {
  const Job &job = work.job;
  const int64_t half = job.c_blocks * VF * VF, panel = 2 * TILE_VECTORS * half;
  const float *const left = job.call.weight + pair * panel;
  const float *const right = left + job.o_blocks * 2 * half;
  const float *const panels[RIGHTS] = {left,         left + half,  right,        right + half,
                                       work.sums[0], work.sums[1], work.sums[2], work.sums[3]};
  for (const Turn &turn : TURNS) {
    const int fetched = turn.right == T1 ? B12 : turn.right;
    const bool whole = fetches && fetched < T1;
    run_turn(work, turn, panels, whole ? panels[fetched] + panel : nullptr, pair);
  }
}

// Rows [r0, r1) of an image with pairs [p0, p1) of panels, half of the channels apart.
void run_block(const Job &job, int64_t image, int64_t r0, int64_t r1, int64_t p0, int64_t p1,
               float *scratch, TileSegment *tables) {
  Work work = {job, image, r0, r1, {}, nullptr, nullptr, nullptr, {}};
  work.p = scratch;
  work.w = work.p + (r1 - r0) * TILE_LANES;
  work.tile = work.w + (r1 - r0) * TILE_LANES;
  // Vectors of a sum lie as far apart as in the weight, so two sums take turns.
  const int64_t half = job.c_blocks * VF * VF;
  work.sums[0] = work.tile + TILE_ROWS * TILE_LANES;
  work.sums[1] = work.sums[0] + half;
  work.sums[2] = work.sums[0] + 4 * half;
  work.sums[3] = work.sums[2] + half;
  find_operands(&work, tables, work.sums[0] + 8 * half);
  for (int64_t pair = p0; pair < p1; ++pair) run_pair(work, pair, pair + 1 < p1);
}

Job job_of(const Call &call) {
  const ConvShape &s = call.shape;
  Job job = {};
  job.call = call;
  job.pixels = s.oh * s.ow;
  job.rows = job.pixels / 2;
  job.units = ceil_div(job.pixels, UNIT_PIXELS);
  job.c_blocks = s.c / (2 * VF);
  job.o_blocks = s.o / (2 * VF);
  job.pairs = ceil_div(job.o_blocks, TILE_VECTORS);
  job.x_plane = s.h * s.w * VF;
  job.y_plane = job.pixels * VF;
  job.gathers = s.sh != 1 || s.sw != 1;
  const Epilogue bounds = as_clip(call.epilogue);
  job.smooth = bounds.activation != ACT_CLIP;
  job.out.next = job.y_plane;
  job.out.lanes = TILE_LANES;
  job.out.lower = bounds.lower;
  job.out.upper = bounds.upper;
  return job;
}

// Blocks of rows of an image, and parts of the outputs.
struct Cut {
  int64_t blocks, parts;
};

int64_t blocks_of(const Job &job) {
  const int64_t fit = greater(1, BLOCK_FLOATS / (PRODUCTS * job.c_blocks * VF));
  return ceil_div(job.rows, fit);
}

// Where weights are larger than the image, threads take outputs, elsewhere pixels, as in cut_of of
// conv_cut.hpp. Sums of pixels do not depend on where blocks begin.
Cut cut_of(const Job &job, int64_t threads) {
  const ConvShape &s = job.call.shape;
  Cut cut = {blocks_of(job), 1};
  if (threads <= 1) return cut;
  if (s.o > s.n * s.h * s.w && job.pairs >= threads) {
    cut.parts = threads;
    return cut;
  }
  while (s.n * cut.blocks % threads && cut.blocks < job.rows) ++cut.blocks;
  return cut;
}

int run(Read read, const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
        const ty_attrs *attrs, void *workspace) {
  Call call;
  if (read(ctx, inputs, outputs, attrs, &call)) return 1;
  const Job job = job_of(call);
  if (call.shape.n * job.rows * job.pairs == 0) return 0;
  const Cut cut = cut_of(job, ctx->threads);
  const int64_t most = ceil_div(job.rows, blocks_of(job));
  const int64_t table = ceil_div(2 * job.c_blocks * (int64_t)sizeof(TileSegment), 64) * 16;
  const int64_t sums = (job.gathers ? PRODUCTS : 4) * job.c_blocks * most * VF;
  const int64_t per_slot =
      table + (2 * most + TILE_ROWS + 4 * job.c_blocks * VF) * TILE_LANES + sums;
  const int64_t items = call.shape.n * cut.blocks;
  ty_parallel(ctx, items * cut.parts, 1, [&](int64_t begin, int64_t end, int32_t slot) {
    float *const own = static_cast<float *>(workspace) + slot * per_slot;
    for (int64_t at = begin; at < end; ++at) {
      const int64_t part = at / items, image = at % items / cut.blocks, block = at % cut.blocks;
      run_block(job, image, job.rows * block / cut.blocks, job.rows * (block + 1) / cut.blocks,
                job.pairs * part / cut.parts, job.pairs * (part + 1) / cut.parts, own + table,
                reinterpret_cast<TileSegment *>(own));
    }
  });
  return 0;
}

CONV_KERNEL(conv2d_strassen, run, read_plain)
CONV_KERNEL(conv2d_fused_strassen, run, read_fused)

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(strassen_conv, TY_KERNEL(conv2d_strassen, "conv2d_f32", "strassen_winograd"),
                  TY_KERNEL(conv2d_fused_strassen, "conv2d_fused_f32", "strassen_winograd"),
                  TY_KERNEL(conv2d_fused_strassen, "conv2d_fused_f32",
                            "strassen_winograd_unbiased"))

// conv2d, conv2d_fused and the input's gradient in float32 by Winograd's method: 3 x 3 kernels of
// stride 1 or, but for the gradient, 2 on blocked layouts. Tiles of the input are transformed,
// multiplied with the transformed weight at each position, and transformed back through the
// epilogue. Where the last row or column of tiles has fewer outputs than others, products that only
// the missing ones need are left out.
#include "conv.hpp"
#include "conv_shape.hpp"
#include "winograd_parity.hpp"

namespace TY_ISA {
namespace {

// What the kernels' descriptions in Python know too, for the workspace.
enum { L2_FLOATS = 96 * 1024, FEWEST_TILES = 3 * TILE_ROWS };

// From so many tiles on, a block is worth a thread's reading all weights for it alone: what threads
// share, each reads from the other's cache.
enum { FEWEST_OWN = 24 };

// A call, and how its tiles are cut: blocks of `block` tiles are transformed at once and lie in
// `strips` strips of `rows` tiles.
struct Wino {
  ConvShape s;
  const float *x, *u, *bias, *residual;
  float *y;
  Epilogue epilogue;
  int64_t c_blocks, o_blocks, tiles_y, tiles_x, tiles;
  int64_t block, rows, strips, blocks;
  int64_t v_step, m_step;       // floats between positions of transformed tiles and of products
  bool drops_y[4], drops_x[4];  // whether a last row or column of tiles has no use for a level
  bool drops;                   // any of them
  bool shared;                  // threads share one block instead of having one each
  const TileSegment *segments;
};

int64_t table_floats(int64_t c_blocks) {
  return ceil_div(c_blocks * static_cast<int64_t>(sizeof(TileSegment)), 64) * 16;
}

// Blocks fill half of the second-level cache, or are as large as it takes to reuse the weight.
template <class Axis>
void plan_tiles(Wino *w, int64_t threads) {
  const ConvShape &s = w->s;
  const int64_t positions = Axis::SIZE * Axis::SIZE;
  w->c_blocks = ceil_div(s.c, VF);
  w->o_blocks = ceil_div(s.o, VF);
  w->tiles_y = ceil_div(s.oh, Axis::OUTPUTS);
  w->tiles_x = ceil_div(s.ow, Axis::OUTPUTS);
  w->tiles = s.n * w->tiles_y * w->tiles_x;
  for (int level = 0; level < Axis::LEVELS; ++level) {
    w->drops_y[level] = s.oh - (w->tiles_y - 1) * Axis::OUTPUTS < Axis::needs(level);
    w->drops_x[level] = s.ow - (w->tiles_x - 1) * Axis::OUTPUTS < Axis::needs(level);
    w->drops = w->drops || w->drops_y[level] || w->drops_x[level];
  }
  const int64_t fit = greater(L2_FLOATS / (positions * w->c_blocks * VF), FEWEST_TILES);
  w->blocks = ceil_div(w->tiles, fit);
  const int64_t even = ceil_div(w->blocks, threads) * threads;
  if (w->blocks < 4 * threads) {
    w->shared = threads > 1 && ceil_div(w->tiles, even) < FEWEST_OWN;
    if (!w->shared) w->blocks = even;
  }
  w->block = ceil_div(w->tiles, w->blocks);
  w->strips = ceil_div(w->block, TILE_ROWS);
  w->rows = ceil_div(w->block, w->strips);
  w->block = w->rows * w->strips;
  w->blocks = ceil_div(w->tiles, w->block);
  // An odd number of cache lines, so that the positions of a tile lie in different sets; the last
  // line but one takes what no product needs.
  w->v_step = ((w->block * w->c_blocks + 1) | 1) * VF;
  w->m_step = ((w->block * TILE_VECTORS) | 1) * VF;
}

// How many tiles, and how many in a last row, a last column and both, come before a tile.
struct Passed {
  int64_t tiles, last_rows, last_columns, corners;

  Passed(const Wino &w, int64_t tile)
      : tiles(tile), last_columns(tile / w.tiles_x), corners(last_columns / w.tiles_y) {
    const int64_t row = last_columns % w.tiles_y, column = tile % w.tiles_x;
    last_rows = corners * w.tiles_x + (row + 1 == w.tiles_y ? column : 0);
  }

  int64_t needed(bool drops_y, bool drops_x) const {
    return tiles - (drops_y ? last_rows : 0) - (drops_x ? last_columns : 0) +
           (drops_y && drops_x ? corners : 0);
  }
};

// Consecutive tiles that are transformed at once. Positions whose products are needed for the same
// tiles form a class; those tiles lie in strips of `rows`.
template <class Axis>
struct Block {
  enum { CLASSES = Axis::LEVELS * Axis::LEVELS };
  int64_t first, count;
  int64_t needed[CLASSES], rows[CLASSES];

  Block(const Wino &w, int64_t at) : first(at * w.block), count(lesser(w.block, w.tiles - first)) {
    const Passed begin(w, first), end(w, first + count);
    for (int c = 0; c < CLASSES; ++c) {
      const bool y = w.drops_y[c / Axis::LEVELS], x = w.drops_x[c % Axis::LEVELS];
      needed[c] = end.needed(y, x) - begin.needed(y, x);
      rows[c] = ceil_div(needed[c], greater(ceil_div(needed[c], w.rows), 1));
    }
  }
};

template <class Axis>
constexpr int class_of(int i, int j) {
  return Axis::level(i) * Axis::LEVELS + Axis::level(j);
}

// Walks over the tiles of a block row by row, and over their rows among those of each class.
template <class Axis>
struct Walk {
  enum { LEVELS = Axis::LEVELS, CLASSES = Block<Axis>::CLASSES };
  const Wino &w;
  const Block<Axis> &block;
  int64_t image, y, x;  // the tile's number along each axis
  int64_t row_step, strip_step;
  int64_t at[CLASSES], left[CLASSES];

  // Starts `skip` tiles into the block.
  Walk(const Wino &wino, const Block<Axis> &of, int64_t skip, int64_t row, int64_t strip)
      : w(wino), block(of), row_step(row), strip_step(strip) {
    const Passed begin(w, block.first), now(w, block.first + skip);
    image = now.corners;
    y = now.last_columns % w.tiles_y;
    x = now.tiles % w.tiles_x;
    for (int c = 0; c < CLASSES; ++c) {
      const bool dy = w.drops_y[c / LEVELS], dx = w.drops_x[c % LEVELS];
      const int64_t rank = now.needed(dy, dx) - begin.needed(dy, dx);
      const int64_t rows = greater(block.rows[c], 1);
      at[c] = rank / rows * strip_step + rank % rows * row_step;
      left[c] = rows - rank % rows;
    }
  }

  // Gives the places of the tile's rows, `spare` in classes that leave it out, and goes on.
  __attribute__((always_inline)) void next(int64_t spare, int64_t (&places)[CLASSES]) {
    const bool last_y = y + 1 == w.tiles_y, last_x = x + 1 == w.tiles_x;
    if (w.drops) {
      for (int c = 0; c < CLASSES; ++c) {
        const bool out = (last_y && w.drops_y[c / LEVELS]) || (last_x && w.drops_x[c % LEVELS]);
        places[c] = out ? spare : at[c];
        if (!out) advance(c);
      }
    } else {
      for (int c = 0; c < CLASSES; ++c) places[c] = at[0];
      advance(0);
    }
    if (!last_x) {
      ++x;
      return;
    }
    x = 0;
    if (last_y) ++image;
    y = last_y ? 0 : y + 1;
  }

  __attribute__((always_inline)) void advance(int c) {
    at[c] += row_step;
    if (--left[c] > 0) return;
    left[c] = block.rows[c];
    at[c] += strip_step - left[c] * row_step;
  }
};

template <class Axis>
TY_INLINE void transform_tile(const float *x, int64_t row, float *v, int64_t step,
                              const int64_t (&places)[Block<Axis>::CLASSES]) {
  enum { N = Axis::SIZE };
  vf half[N][N];
  TY_UNROLLED for (int j = 0; j < N; ++j) {
    vf d[N], t[N];
    TY_UNROLLED for (int i = 0; i < N; ++i) d[i] = vload(x + i * row + j * VF);
    Axis::input(d, t);
    TY_UNROLLED for (int i = 0; i < N; ++i) half[i][j] = t[i];
  }
  TY_UNROLLED for (int i = 0; i < N; ++i) {
    vf t[N];
    Axis::input(half[i], t);
    TY_UNROLLED for (int j = 0; j < N; ++j)
        vstore(v + places[class_of<Axis>(i, j)] + (i * N + j) * step, t[j]);
  }
}

// The tile at pixel (y, x) of a plane, some of whose pixels lie outside and count as zero.
template <class Axis>
void transform_edge(const ConvShape &s, const float *plane, int64_t y, int64_t x, float *v,
                    int64_t step, const int64_t (&places)[Block<Axis>::CLASSES]) {
  enum { N = Axis::SIZE };
  alignas(64) float padded[N * N * VF];
  for (int64_t i = 0; i < N; ++i) {
    const bool inside = y + i >= 0 && y + i < s.h;
    const float *row = plane + ((y + i) * s.w + x) * VF;
    for (int64_t j = 0; j < N; ++j)
      vstore(padded + (i * N + j) * VF,
             inside && x + j >= 0 && x + j < s.w ? vload(row + j * VF) : vzero());
  }
  transform_tile<Axis>(padded, N * VF, v, step, places);
}

// One channel block of `count` tiles, `skip` into a block. Tiles are the inner loop, so that few
// streams of memory are read and written at once.
template <class Axis>
void transform_strip(const Wino &w, const Block<Axis> &block, int64_t skip, int64_t count,
                     int64_t c_block, float *v) {
  enum { N = Axis::SIZE };
  const ConvShape &s = w.s;
  const int64_t row = s.w * VF, strip = w.rows * VF;
  const int64_t spare = (w.block * w.c_blocks - c_block * w.rows) * VF;
  Walk<Axis> at(w, block, skip, VF, w.c_blocks * strip);
  for (int64_t i = 0; i < count; ++i) {
    const float *plane = w.x + (at.image * w.c_blocks + c_block) * s.h * row;
    const int64_t y = at.y * Axis::STEP - s.top, x = at.x * Axis::STEP - s.left;
    float *to = v + c_block * strip;
    int64_t places[Block<Axis>::CLASSES];
    at.next(spare, places);
    if (y >= 0 && x >= 0 && y + N <= s.h && x + N <= s.w)
      transform_tile<Axis>(plane + y * row + x * VF, row, to, w.v_step, places);
    else
      transform_edge<Axis>(s, plane, y, x, to, w.v_step, places);
  }
}

// Products of a position's tiles with one pair of output-channel blocks.
inline void multiply_position(const Wino &w, TileArgs *t, const float *v, float *m, int64_t needed,
                              int64_t rows, int vectors) {
  for (int64_t done = 0; done < needed; done += rows) {
    t->a = v;
    t->c = m;
    tile_of(TILE_BLOCK, 1, static_cast<int>(lesser(rows, needed - done)), vectors)(t);
    v += w.c_blocks * w.rows * VF;
    m += w.rows * TILE_VECTORS * VF;
  }
}

// Products of a block of tiles with one pair of output-channel blocks, at every position; those
// that share a weight follow each other.
template <class Axis>
void multiply(const Wino &w, const Block<Axis> &block, const float *v, int64_t o_block, int vectors,
              float *m) {
  const int64_t weights = Axis::WEIGHTS * Axis::WEIGHTS, matrix = w.c_blocks * VF * VF;
  TileArgs t = {};
  t.segments = w.segments;
  t.n_segments = w.c_blocks;
  t.a_step = 1;
  t.b_step = VF;
  t.b_next = weights * matrix;
  for (int weight = 0; weight < weights; ++weight) {
    t.b = w.u + (o_block * weights + weight) * matrix;
    for (int i = 0; i < Axis::SIZE; ++i) {
      if (Axis::weight(i) != weight / Axis::WEIGHTS) continue;
      for (int j = 0; j < Axis::SIZE; ++j) {
        if (Axis::weight(j) != weight % Axis::WEIGHTS) continue;
        const int position = i * Axis::SIZE + j, c = class_of<Axis>(i, j);
        multiply_position(w, &t, v + position * w.v_step, m + position * w.m_step, block.needed[c],
                          block.rows[c], vectors);
      }
    }
  }
}

// Where a tile's pixels of one channel block go.
struct Target {
  float *y;
  const float *residual;
  int64_t row, rows, cols;
  vf bias;
  vm valid;
};

template <class Axis>
TY_INLINE void finish_tile(const float *m, int64_t step,
                           const int64_t (&places)[Block<Axis>::CLASSES], const Target &t,
                           const Epilogue &e) {
  enum { N = Axis::SIZE, M = Axis::OUTPUTS };
  vf half[M][N];
  TY_UNROLLED for (int j = 0; j < N; ++j) {
    vf d[N], r[M];
    TY_UNROLLED for (int i = 0; i < N; ++i) d[i] =
        vload(m + places[class_of<Axis>(i, j)] + (i * N + j) * step);
    Axis::output(d, r);
    TY_UNROLLED for (int i = 0; i < M; ++i) half[i][j] = r[i];
  }
  TY_UNROLLED for (int i = 0; i < M; ++i) {
    if (i >= t.rows) return;
    vf r[M];
    Axis::output(half[i], r);
    TY_UNROLLED for (int j = 0; j < M; ++j) {
      if (j >= t.cols) break;
      vf sum = vadd(r[j], t.bias);
      if (t.residual) sum = vadd(sum, vload(t.residual + i * t.row + j * VF));
      vstore(t.y + i * t.row + j * VF, vselect(t.valid, activate(sum, e), vzero()));
    }
  }
}

template <class Axis>
void finish(const Wino &w, const Block<Axis> &block, const float *m, int64_t o_block, int vectors) {
  const ConvShape &s = w.s;
  for (int v = 0; v < vectors; ++v) {
    const int64_t channel = (o_block + v) * VF;
    const vtail lanes = vtail_of(s.o - channel);
    Target t = {};
    t.valid = vtail_mask(lanes);
    t.bias = w.bias ? vload_tail(w.bias + channel, lanes) : vzero();
    t.row = s.ow * VF;
    Walk<Axis> at(w, block, 0, vectors * VF, w.rows * TILE_VECTORS * VF);
    for (int64_t i = 0; i < block.count; ++i) {
      const int64_t y = at.y * Axis::OUTPUTS, x = at.x * Axis::OUTPUTS;
      const int64_t plane = at.image * w.o_blocks + o_block + v;
      const int64_t pixel = ((plane * s.oh + y) * s.ow + x) * VF;
      t.y = w.y + pixel;
      t.residual = w.residual ? w.residual + pixel : nullptr;
      t.rows = s.oh - y;
      t.cols = s.ow - x;
      // A product that is left out matters to no pixel that is stored: any will do instead.
      int64_t places[Block<Axis>::CLASSES];
      at.next(0, places);
      const float *from = m + v * VF;
      // The activation is a constant where it is inlined, so that the tile has no branch.
      if (w.epilogue.activation == ACT_IDENTITY)
        finish_tile<Axis>(from, w.m_step, places, t, {ACT_IDENTITY, 0, 0});
      else if (w.epilogue.activation == ACT_RELU)
        finish_tile<Axis>(from, w.m_step, places, t, {ACT_RELU, 0, 0});
      else
        finish_tile<Axis>(from, w.m_step, places, t, w.epilogue);
    }
  }
}

template <class Axis>
void run_outputs(const Wino &w, const Block<Axis> &block, const float *v, int64_t pair, float *m) {
  const int64_t o_block = pair * TILE_VECTORS;
  const int vectors = static_cast<int>(lesser(TILE_VECTORS, w.o_blocks - o_block));
  multiply<Axis>(w, block, v, o_block, vectors, m);
  finish<Axis>(w, block, m, o_block, vectors);
}

// Item `at` of c_blocks x strips of a block of tiles.
template <class Axis>
void run_inputs(const Wino &w, const Block<Axis> &block, int64_t at, float *v) {
  const int64_t begin = at / w.c_blocks * block.rows[0];
  transform_strip<Axis>(w, block, begin, lesser(block.rows[0], block.count - begin),
                        at % w.c_blocks, v);
}

template <class Axis>
void run(const ty_ctx *ctx, Wino *w, float *workspace) {
  const ConvShape &s = w->s;
  if (s.n == 0 || s.o == 0 || s.oh <= 0 || s.ow <= 0) return;
  plan_tiles<Axis>(w, ctx->threads);
  const int64_t positions = Axis::SIZE * Axis::SIZE;
  const int64_t v_floats = positions * w->v_step, m_floats = positions * w->m_step;
  const int64_t pairs = ceil_div(w->o_blocks, TILE_VECTORS);
  TileSegment *segments = reinterpret_cast<TileSegment *>(workspace);
  for (int64_t i = 0; i < w->c_blocks; ++i) segments[i] = {i * w->rows * VF, i * VF * VF, VF};
  w->segments = segments;
  float *const tiles = workspace + table_floats(w->c_blocks);
  float *const products = tiles + (w->shared ? 1 : ctx->threads) * v_floats;
  const auto items_of = [&](const Block<Axis> &block) {
    return ceil_div(block.count, block.rows[0]) * w->c_blocks;
  };
  if (!w->shared) {
    ty_parallel(ctx, w->blocks, 1, [&](int64_t begin, int64_t end, int32_t slot) {
      float *const v = tiles + slot * v_floats, *const m = products + slot * m_floats;
      for (int64_t i = begin; i < end; ++i) {
        const Block<Axis> block(*w, i);
        for (int64_t at = 0; at < items_of(block); ++at) run_inputs(*w, block, at, v);
        for (int64_t pair = 0; pair < pairs; ++pair) run_outputs(*w, block, v, pair, m);
      }
    });
    return;
  }
  for (int64_t i = 0; i < w->blocks; ++i) {
    const Block<Axis> block(*w, i);
    ty_parallel(ctx, items_of(block), 1, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t at = begin; at < end; ++at) run_inputs(*w, block, at, tiles);
    });
    ty_parallel(ctx, pairs, 1, [&](int64_t begin, int64_t end, int32_t slot) {
      for (int64_t pair = begin; pair < end; ++pair)
        run_outputs(*w, block, tiles, pair, products + slot * m_floats);
    });
  }
}

Wino wino_of(const ty_tensor *inputs, const ty_tensor *outputs) {
  Wino w = {};
  w.x = static_cast<const float *>(inputs[0].data);
  w.u = static_cast<const float *>(inputs[1].data);
  w.y = static_cast<float *>(outputs[0].data);
  return w;
}

template <class Axis>
int run_plain(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
              void *workspace) {
  const ty_conv2d_attrs *a = reinterpret_cast<const ty_conv2d_attrs *>(attrs);
  Wino w = wino_of(inputs, outputs);
  w.s = conv_shape(*a, inputs[0].shape, inputs[1].shape, outputs[0].shape);
  run<Axis>(ctx, &w, static_cast<float *>(workspace));
  return 0;
}

// The gradient of the input is a convolution of the output's gradient with the kernels turned by
// half a turn and channels swapped; the layout of the weight has seen to both.
template <class Axis>
int run_backward_data(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                      const ty_attrs *attrs, void *workspace) {
  const ty_conv2d_backward_data_attrs *a =
      reinterpret_cast<const ty_conv2d_backward_data_attrs *>(attrs);
  Wino w = wino_of(inputs, outputs);
  const ConvShape s = conv_shape(*a, outputs[0].shape, inputs[1].shape, inputs[0].shape);
  w.s = s;
  w.s.c = s.o;
  w.s.h = s.oh;
  w.s.w = s.ow;
  w.s.o = s.c;
  w.s.oh = s.h;
  w.s.ow = s.w;
  w.s.top = s.kh - 1 - s.top;
  w.s.left = s.kw - 1 - s.left;
  run<Axis>(ctx, &w, static_cast<float *>(workspace));
  return 0;
}

template <class Axis>
int run_fused(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
              void *workspace) {
  const ty_conv2d_fused_attrs *a = reinterpret_cast<const ty_conv2d_fused_attrs *>(attrs);
  Wino w = wino_of(inputs, outputs);
  w.s = conv_shape(*a, inputs[0].shape, inputs[1].shape, outputs[0].shape);
  if (read_epilogue(ctx, *a, inputs, &w)) return 1;
  run<Axis>(ctx, &w, static_cast<float *>(workspace));
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(
    winograd, TY_KERNEL(run_plain<UnitStride<2>>, "conv2d_f32", "winograd_f23"),
    TY_KERNEL(run_plain<UnitStride<4>>, "conv2d_f32", "winograd_f43"),
    TY_KERNEL(run_plain<UnitStride<6>>, "conv2d_f32", "winograd_f63"),
    TY_KERNEL(run_plain<StrideTwo<2>>, "conv2d_f32", "winograd_f22s2"),
    TY_KERNEL(run_plain<StrideTwo<4>>, "conv2d_f32", "winograd_f42s2"),
    TY_KERNEL(run_backward_data<UnitStride<2>>, "conv2d_backward_data_f32", "winograd_f23"),
    TY_KERNEL(run_backward_data<UnitStride<4>>, "conv2d_backward_data_f32", "winograd_f43"),
    TY_KERNEL(run_backward_data<UnitStride<6>>, "conv2d_backward_data_f32", "winograd_f63"),
    TY_KERNEL(run_fused<UnitStride<2>>, "conv2d_fused_f32", "winograd_f23"),
    TY_KERNEL(run_fused<UnitStride<2>>, "conv2d_fused_f32", "winograd_f23_unbiased"),
    TY_KERNEL(run_fused<UnitStride<4>>, "conv2d_fused_f32", "winograd_f43"),
    TY_KERNEL(run_fused<UnitStride<4>>, "conv2d_fused_f32", "winograd_f43_unbiased"),
    TY_KERNEL(run_fused<UnitStride<6>>, "conv2d_fused_f32", "winograd_f63"),
    TY_KERNEL(run_fused<UnitStride<6>>, "conv2d_fused_f32", "winograd_f63_unbiased"),
    TY_KERNEL(run_fused<StrideTwo<2>>, "conv2d_fused_f32", "winograd_f22s2"),
    TY_KERNEL(run_fused<StrideTwo<2>>, "conv2d_fused_f32", "winograd_f22s2_unbiased"),
    TY_KERNEL(run_fused<StrideTwo<4>>, "conv2d_fused_f32", "winograd_f42s2"),
    TY_KERNEL(run_fused<StrideTwo<4>>, "conv2d_fused_f32", "winograd_f42s2_unbiased"))

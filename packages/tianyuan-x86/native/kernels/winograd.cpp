// conv2d, conv2d_fused and the input's gradient in float32 by Winograd's method: 3 x 3 kernels of
// stride 1 on blocked layouts. Tiles of the input are transformed, multiplied with the transformed
// weight at each of the (M + 2)^2 frequencies, and transformed back through the epilogue.
#include "conv.hpp"
#include "conv_shape.hpp"
#include "winograd_transform.hpp"

namespace TY_ISA {
namespace {

// What the kernels' descriptions in Python know too, for the workspace.
enum { L2_FLOATS = 96 * 1024, FEWEST_TILES = 3 * TILE_ROWS };

// A call, and how its tiles are cut: blocks of `block` tiles are transformed at once and lie in
// `strips` strips of `rows` tiles.
struct Wino {
  ConvShape s;
  const float *x, *u, *bias, *residual;
  float *y;
  Epilogue epilogue;
  int64_t c_blocks, o_blocks, tiles_y, tiles_x, tiles;
  int64_t block, rows, strips, blocks;
  int64_t v_step, m_step;  // floats between frequencies of transformed tiles and of products
  bool shared;             // threads share one block instead of having one each
  const TileSegment *segments;
};

int64_t table_floats(int64_t c_blocks) {
  return ceil_div(c_blocks * static_cast<int64_t>(sizeof(TileSegment)), 64) * 16;
}

// Blocks fill half of the second-level cache, or are as large as it takes to reuse the weight.
template <int M>
void plan_tiles(Wino *w, int64_t threads) {
  const ConvShape &s = w->s;
  const int64_t frequencies = (M + 2) * (M + 2);
  w->c_blocks = ceil_div(s.c, VF);
  w->o_blocks = ceil_div(s.o, VF);
  w->tiles_y = ceil_div(s.oh, M);
  w->tiles_x = ceil_div(s.ow, M);
  w->tiles = s.n * w->tiles_y * w->tiles_x;
  const int64_t fit = greater(L2_FLOATS / (frequencies * w->c_blocks * VF), FEWEST_TILES);
  w->blocks = ceil_div(w->tiles, fit);
  w->shared = threads > 1 && w->blocks < 4 * threads;
  w->block = ceil_div(w->tiles, w->blocks);
  w->strips = ceil_div(w->block, TILE_ROWS);
  w->rows = ceil_div(w->block, w->strips);
  w->block = w->rows * w->strips;
  w->blocks = ceil_div(w->tiles, w->block);
  // An odd number of cache lines, so that the frequencies of a tile lie in different sets.
  w->v_step = ((w->strips * w->rows * w->c_blocks) | 1) * VF;
  w->m_step = ((w->strips * w->rows * TILE_VECTORS) | 1) * VF;
}

template <int M>
TY_INLINE void transform_tile(const float *x, int64_t row, float *v, int64_t step) {
  enum { N = M + 2 };
  vf half[N][N];
  TY_UNROLLED for (int j = 0; j < N; ++j) {
    vf d[N], t[N];
    TY_UNROLLED for (int i = 0; i < N; ++i) d[i] = vload(x + i * row + j * VF);
    transform_input<M>(d, t);
    TY_UNROLLED for (int i = 0; i < N; ++i) half[i][j] = t[i];
  }
  TY_UNROLLED for (int i = 0; i < N; ++i) {
    vf t[N];
    transform_input<M>(half[i], t);
    TY_UNROLLED for (int j = 0; j < N; ++j) vstore(v + (i * N + j) * step, t[j]);
  }
}

// Walks over tiles row by row.
template <int M>
struct Walk {
  int64_t image, y, x;  // of the tile's first output pixel

  Walk(const Wino &w, int64_t tile)
      : image(tile / (w.tiles_x * w.tiles_y)),
        y(tile / w.tiles_x % w.tiles_y * M),
        x(tile % w.tiles_x * M) {}

  void next(const Wino &w) {
    x += M;
    if (x < w.s.ow) return;
    x = 0;
    y += M;
    if (y < w.s.oh) return;
    y = 0;
    ++image;
  }
};

// The tile at pixel (y, x) of a plane, some of whose pixels lie outside and count as zero.
template <int M>
void transform_edge(const ConvShape &s, const float *plane, int64_t y, int64_t x, float *v,
                    int64_t step) {
  enum { N = M + 2 };
  alignas(64) float padded[N * N * VF];
  for (int64_t i = 0; i < N; ++i) {
    const bool inside = y + i >= 0 && y + i < s.h;
    const float *row = plane + ((y + i) * s.w + x) * VF;
    for (int64_t j = 0; j < N; ++j)
      vstore(padded + (i * N + j) * VF,
             inside && x + j >= 0 && x + j < s.w ? vload(row + j * VF) : vzero());
  }
  transform_tile<M>(padded, N * VF, v, step);
}

// One channel block of `count` tiles of a strip. Tiles are the inner loop, so that few streams of
// memory are read and written at once.
template <int M>
void transform_strip(const Wino &w, int64_t first, int64_t count, int64_t c_block, float *v) {
  enum { N = M + 2 };
  const ConvShape &s = w.s;
  const int64_t row = s.w * VF;
  Walk<M> at(w, first);
  for (int64_t i = 0; i < count; ++i, at.next(w)) {
    const float *plane = w.x + (at.image * w.c_blocks + c_block) * s.h * row;
    const int64_t y = at.y - s.top, x = at.x - s.left;
    float *to = v + (c_block * w.rows + i) * VF;
    if (y >= 0 && x >= 0 && y + N <= s.h && x + N <= s.w)
      transform_tile<M>(plane + y * row + x * VF, row, to, w.v_step);
    else
      transform_edge<M>(s, plane, y, x, to, w.v_step);
  }
}

// Products of a block of tiles with one pair of output-channel blocks, at every frequency.
template <int M>
void multiply(const Wino &w, const float *v, int64_t count, int64_t o_block, int vectors,
              float *m) {
  const int64_t frequencies = (M + 2) * (M + 2), matrix = w.c_blocks * VF * VF;
  TileArgs t = {};
  t.segments = w.segments;
  t.n_segments = w.c_blocks;
  t.a_step = 1;
  t.b_step = VF;
  t.b_next = frequencies * matrix;
  const int64_t strips = ceil_div(count, w.rows), last = count - (strips - 1) * w.rows;
  const TileRun run = tile_of(TILE_BLOCK, 1, static_cast<int>(w.rows), vectors);
  const TileRun run_last = tile_of(TILE_BLOCK, 1, static_cast<int>(last), vectors);
  for (int64_t f = 0; f < frequencies; ++f) {
    t.b = w.u + (o_block * frequencies + f) * matrix;
    for (int64_t strip = 0; strip < strips; ++strip) {
      t.a = v + f * w.v_step + strip * w.c_blocks * w.rows * VF;
      t.c = m + f * w.m_step + strip * w.rows * TILE_VECTORS * VF;
      (strip + 1 < strips ? run : run_last)(&t);
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

template <int M>
TY_INLINE void finish_tile(const float *m, int64_t step, const Target &t, const Epilogue &e) {
  enum { N = M + 2 };
  vf half[M][N];
  TY_UNROLLED for (int j = 0; j < N; ++j) {
    vf d[N], r[M];
    TY_UNROLLED for (int i = 0; i < N; ++i) d[i] = vload(m + (i * N + j) * step);
    transform_output<M>(d, r);
    TY_UNROLLED for (int i = 0; i < M; ++i) half[i][j] = r[i];
  }
  TY_UNROLLED for (int i = 0; i < M; ++i) {
    if (i >= t.rows) return;
    vf r[M];
    transform_output<M>(half[i], r);
    TY_UNROLLED for (int j = 0; j < M; ++j) {
      if (j >= t.cols) break;
      vf sum = vadd(r[j], t.bias);
      if (t.residual) sum = vadd(sum, vload(t.residual + i * t.row + j * VF));
      vstore(t.y + i * t.row + j * VF, vselect(t.valid, activate(sum, e), vzero()));
    }
  }
}

template <int M>
void finish(const Wino &w, const float *m, int64_t first, int64_t count, int64_t o_block,
            int vectors) {
  const ConvShape &s = w.s;
  for (int v = 0; v < vectors; ++v) {
    const int64_t channel = (o_block + v) * VF;
    const vtail lanes = vtail_of(s.o - channel);
    Target t = {};
    t.valid = vtail_mask(lanes);
    t.bias = w.bias ? vload_tail(w.bias + channel, lanes) : vzero();
    t.row = s.ow * VF;
    Walk<M> at(w, first);
    for (int64_t i = 0; i < count; ++i, at.next(w)) {
      const int64_t pixel =
          (((at.image * w.o_blocks + o_block + v) * s.oh + at.y) * s.ow + at.x) * VF;
      t.y = w.y + pixel;
      t.residual = w.residual ? w.residual + pixel : nullptr;
      t.rows = s.oh - at.y;
      t.cols = s.ow - at.x;
      const float *from =
          m + i / w.rows * w.rows * TILE_VECTORS * VF + (i % w.rows * vectors + v) * VF;
      // The activation is a constant where it is inlined, so that the tile has no branch.
      if (w.epilogue.activation == ACT_IDENTITY)
        finish_tile<M>(from, w.m_step, t, {ACT_IDENTITY, 0, 0});
      else if (w.epilogue.activation == ACT_RELU)
        finish_tile<M>(from, w.m_step, t, {ACT_RELU, 0, 0});
      else
        finish_tile<M>(from, w.m_step, t, w.epilogue);
    }
  }
}

template <int M>
void run_outputs(const Wino &w, const float *v, int64_t first, int64_t count, int64_t pair,
                 float *m) {
  const int64_t o_block = pair * TILE_VECTORS;
  const int vectors = static_cast<int>(lesser(TILE_VECTORS, w.o_blocks - o_block));
  multiply<M>(w, v, count, o_block, vectors, m);
  finish<M>(w, m, first, count, o_block, vectors);
}

// Item `at` of c_blocks x strips of a block of tiles.
template <int M>
void run_inputs(const Wino &w, int64_t first, int64_t count, int64_t at, float *v) {
  const int64_t begin = at / w.c_blocks * w.rows;
  transform_strip<M>(w, first + begin, lesser(w.rows, count - begin), at % w.c_blocks,
                     v + begin * w.c_blocks * VF);
}

template <int M>
void run(const ty_ctx *ctx, Wino *w, float *workspace) {
  const ConvShape &s = w->s;
  if (s.n == 0 || s.o == 0 || s.oh <= 0 || s.ow <= 0) return;
  plan_tiles<M>(w, ctx->threads);
  const int64_t frequencies = (M + 2) * (M + 2);
  const int64_t v_floats = frequencies * w->v_step, m_floats = frequencies * w->m_step;
  const int64_t pairs = ceil_div(w->o_blocks, TILE_VECTORS);
  TileSegment *segments = reinterpret_cast<TileSegment *>(workspace);
  for (int64_t i = 0; i < w->c_blocks; ++i) segments[i] = {i * w->rows * VF, i * VF * VF, VF};
  w->segments = segments;
  float *const tiles = workspace + table_floats(w->c_blocks);
  float *const products = tiles + (w->shared ? 1 : ctx->threads) * v_floats;
  const auto count_of = [&](int64_t block) {
    return lesser(w->block, w->tiles - block * w->block);
  };
  if (!w->shared) {
    ty_parallel(ctx, w->blocks, 1, [&](int64_t begin, int64_t end, int32_t slot) {
      float *const v = tiles + slot * v_floats, *const m = products + slot * m_floats;
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * w->block, count = count_of(block);
        const int64_t items = ceil_div(count, w->rows) * w->c_blocks;
        for (int64_t at = 0; at < items; ++at) run_inputs<M>(*w, first, count, at, v);
        for (int64_t pair = 0; pair < pairs; ++pair) run_outputs<M>(*w, v, first, count, pair, m);
      }
    });
    return;
  }
  for (int64_t block = 0; block < w->blocks; ++block) {
    const int64_t first = block * w->block, count = count_of(block);
    const int64_t items = ceil_div(count, w->rows) * w->c_blocks;
    ty_parallel(ctx, items, 1, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t at = begin; at < end; ++at) run_inputs<M>(*w, first, count, at, tiles);
    });
    ty_parallel(ctx, pairs, 1, [&](int64_t begin, int64_t end, int32_t slot) {
      for (int64_t pair = begin; pair < end; ++pair)
        run_outputs<M>(*w, tiles, first, count, pair, products + slot * m_floats);
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

template <int M>
int run_plain(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
              void *workspace) {
  const ty_conv2d_attrs *a = reinterpret_cast<const ty_conv2d_attrs *>(attrs);
  Wino w = wino_of(inputs, outputs);
  w.s = conv_shape(*a, inputs[0].shape, inputs[1].shape, outputs[0].shape);
  run<M>(ctx, &w, static_cast<float *>(workspace));
  return 0;
}

// The gradient of the input is a convolution of the output's gradient with the kernels turned by
// half a turn and channels swapped; the layout of the weight has seen to both.
template <int M>
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
  run<M>(ctx, &w, static_cast<float *>(workspace));
  return 0;
}

template <int M>
int run_fused(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
              void *workspace) {
  const ty_conv2d_fused_attrs *a = reinterpret_cast<const ty_conv2d_fused_attrs *>(attrs);
  Wino w = wino_of(inputs, outputs);
  w.s = conv_shape(*a, inputs[0].shape, inputs[1].shape, outputs[0].shape);
  if (read_epilogue(ctx, *a, inputs, &w)) return 1;
  run<M>(ctx, &w, static_cast<float *>(workspace));
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(winograd, TY_KERNEL(run_plain<2>, "conv2d_f32", "winograd_f23"),
                  TY_KERNEL(run_plain<4>, "conv2d_f32", "winograd_f43"),
                  TY_KERNEL(run_plain<6>, "conv2d_f32", "winograd_f63"),
                  TY_KERNEL(run_backward_data<2>, "conv2d_backward_data_f32", "winograd_f23"),
                  TY_KERNEL(run_backward_data<4>, "conv2d_backward_data_f32", "winograd_f43"),
                  TY_KERNEL(run_backward_data<6>, "conv2d_backward_data_f32", "winograd_f63"),
                  TY_KERNEL(run_fused<2>, "conv2d_fused_f32", "winograd_f23"),
                  TY_KERNEL(run_fused<2>, "conv2d_fused_f32", "winograd_f23_unbiased"),
                  TY_KERNEL(run_fused<4>, "conv2d_fused_f32", "winograd_f43"),
                  TY_KERNEL(run_fused<4>, "conv2d_fused_f32", "winograd_f43_unbiased"),
                  TY_KERNEL(run_fused<6>, "conv2d_fused_f32", "winograd_f63"),
                  TY_KERNEL(run_fused<6>, "conv2d_fused_f32", "winograd_f63_unbiased"))

// General matrix product of one thread: packed panels in a caller's workspace, tiles over them.
#include "matmul.hpp"
#include "panels.hpp"

namespace TY_ISA {
namespace {

// Depth, height and width of the packed blocks: a panel of b stays in the first-level cache, the
// block of a in the second, the block of b in the third.
enum { BLOCK_K = 512, BLOCK_M = 12 * TILE_ROWS, BLOCK_N = 1024 };

enum { LINE = 16 };             // floats of a cache line
enum { BY_ROWS = 1024 * 128 };  // floats of a packed b that stays in the second-level cache
enum { WIDE = 512 };            // columns from which on it pays to write c row by row

// One panel of rows that lie contiguous, transposed in registers. Whole vectors are stored, the
// next over what is too much of the last, since stores of some lanes are slow; so up to VF - 1
// floats behind the panel change.
void pack_a_rows(float *to, const float *a, int64_t a_row, int64_t height, int64_t depth) {
  for (int64_t k = 0; k < depth; k += VF) {
    const int64_t some = lesser(VF, depth - k);
    vf block[VF];
    vload_columns(block, a + k, a_row, height, some);
    for (int64_t r = 0; r < some; ++r) vstore(to + (k + r) * height, block[r]);
  }
}

// Panels of a tile's rows, k-major.
void pack_a(float *to, const float *a, int64_t a_row, int64_t a_step, int64_t rows, int64_t depth) {
  const int64_t tiles = tiles_of(rows);
  for (int64_t at = 0, i = 0; at < tiles; ++at) {
    const int64_t height = rows * (at + 1) / tiles - i;
    const float *from = a + i * a_row;
    if (a_row == 1) {
      const vtail tail = vtail_of(height);
      for (int64_t k = 0; k < depth; ++k)
        vstore(to + k * height, vload_tail(from + k * a_step, tail));
    } else if (a_step == 1) {
      pack_a_rows(to, from, a_row, height, depth);
    } else {
      for (int64_t r = 0; r < height; ++r)
        for (int64_t k = 0; k < depth; ++k) to[k * height + r] = from[r * a_row + k * a_step];
    }
    to += height * depth;
    i += height;
  }
}

void pack_b_panel(float *to, const Gemm &g, int64_t k0, int64_t j0, int64_t cols, int64_t depth) {
  const float *from = g.b + k0 * g.b_step + j0 * g.b_column;
  if (g.b_column == 1) {
    pack_b_rows(to, from, g.b_step, cols, depth);
  } else if (g.b_step == 1) {
    pack_b_columns(to, from, g.b_column, cols, depth);
  } else {
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t j = 0; j < TILE_LANES; ++j)
        to[k * TILE_LANES + j] = j < cols ? from[k * g.b_step + j * g.b_column] : 0.0f;
  }
}

// Moves a tile between the accumulators and c; the last block of k adds residual and activation.
void load_tile(float *acc, const Gemm &g, int64_t i, int64_t rows, int64_t j, int64_t cols) {
  const int vectors = cols > VF ? 2 : 1;
  for (int64_t r = 0; r < rows; ++r)
    for (int v = 0; v < vectors; ++v)
      vstore(acc + (r * vectors + v) * VF,
             vload_tail(g.c + (i + r) * g.c_row + j + v * VF, vtail_of(cols - v * VF)));
}

// One column of vectors; the activation is a constant where it is inlined.
TY_INLINE void store_column(const Gemm &g, const Epilogue &e, const float *acc, int64_t acc_step,
                            int64_t at, int64_t rows, vtail tail) {
  for (int64_t r = 0; r < rows; ++r) {
    vf x = vload(acc + r * acc_step);
    if (g.residual) x = vadd(x, vload_tail(g.residual + at + r * g.c_row, tail));
    vstore_tail(g.c + at + r * g.c_row, activate(x, e), tail);
  }
}

// The same of whole tiles by GELU, inlined: what it looks up stays in registers.
void store_gelu(const Gemm &g, const float *acc, int64_t at, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r, at += g.c_row)
    for (int64_t v = 0; v < TILE_LANES; v += VF) {
      vf x = vload(acc + r * TILE_LANES + v);
      if (g.residual) x = vadd(x, vload(g.residual + at + v));
      vstore(g.c + at + v, vgelu(x));
    }
}

void store_tile(const float *acc, const Gemm &g, int64_t i, int64_t rows, int64_t j, int64_t cols,
                bool last) {
  if (last && cols == TILE_LANES && g.epilogue.activation == ACT_GELU)
    return store_gelu(g, acc, i * g.c_row + j, rows);
  const int vectors = cols > VF ? 2 : 1;
  const int64_t step = vectors * VF;
  const Epilogue bounds = as_clip(g.epilogue);
  for (int v = 0; v < vectors; ++v) {
    const vtail tail = vtail_of(cols - v * VF);
    const int64_t column = j + v * VF, at = i * g.c_row + column;
    if (!last || (g.epilogue.activation == ACT_IDENTITY && !g.residual)) {
      for (int64_t r = 0; r < rows; ++r)
        vstore_tail(g.c + at + r * g.c_row, vload(acc + v * VF + r * step), tail);
    } else if (bounds.activation == ACT_CLIP) {
      store_column(g, {ACT_CLIP, bounds.lower, bounds.upper}, acc + v * VF, step, at, rows, tail);
    } else {
      store_column(g, g.epilogue, acc + v * VF, step, at, rows, tail);
    }
  }
}

struct Block {
  int64_t i0, rows, j0, cols, k0, depth;
  bool first, last, packed_a;
  bool packed_b, by_panel;  // by_panel: a panel of b is packed when its turn comes
  bool by_rows;  // a packed b stays in the second-level cache, so c is written row by row
  // What is packed next, or NULL: rows that lie side by side, and the rows of b of a block of k.
  const float *next_a, *next_b;
  int64_t next_rows;
  float *strip;  // gradients of the rows of a tile, or NULL
};

// Floats between rows of gradients: at multiples of 4 KiB, lines evict one another.
TY_INLINE int64_t strip_row(int64_t cols) {
  return round_up(lesser(cols, BLOCK_N), TILE_LANES) + LINE;
}

// Where a panel of columns of b lies in the cases that need not be packed.
TY_INLINE const float *panel_of(const Gemm &g, const Block &block, int64_t j) {
  if (g.packed) return g.packed + (block.j0 + j) * g.k + block.k0 * TILE_LANES;
  return g.b + block.k0 * g.b_step + (block.j0 + j) * g.b_column;
}

// Lets the tile whose turn it is fetch a line of each k of what is packed next.
TY_INLINE bool fetch_block(const Gemm &g, const Block &block, int64_t turn, TileArgs *t) {
  const int64_t lines_a = block.next_a ? ceil_div(block.next_rows, LINE) : 0;
  const int64_t lines_b = block.next_b ? block.cols / LINE : 0;
  if (turn < lines_a) {
    t->line = block.next_a + turn * LINE;
    t->line_step = g.a_step;
  } else if (turn < lines_a + lines_b) {
    t->line = block.next_b + (turn - lines_a) * LINE;
    t->line_step = g.b_step;
  }
  return turn < lines_a + lines_b;
}

// Brings a part of the next panel of b into the cache while tile `at` of `tiles` runs: in the tile
// itself where rows of the panel lie contiguous, which it then returns, else beforehand.
TY_INLINE bool fetch_ahead(const Gemm &g, const Block &block, int64_t j, int64_t at, int64_t tiles,
                           int64_t turn, TileArgs *t) {
  t->line = t->b;
  t->line_step = 0;
  if (g.packed) {
    // The tiles share the lines of a panel evenly; the panel behind the last one is the first of
    // the next block of k.
    const float *next = j + TILE_LANES < block.cols ? panel_of(g, block, j + TILE_LANES)
                        : block.last ? nullptr
                                     : panel_of(g, block, 0) + block.depth * TILE_LANES;
    if (!next) return false;
    t->line_step = ceil_div(TILE_LANES, tiles);
    t->line = next + at * t->line_step * block.depth;
    return at * t->line_step < TILE_LANES;
  }
  if (!block.by_panel) return fetch_block(g, block, turn, t);
  if (j + TILE_LANES >= block.cols) return false;
  const float *next = panel_of(g, block, j + TILE_LANES);
  if (g.b_column == 1) {
    t->line = next + at * LINE;
    t->line_step = g.b_step;
    return at < TILE_LANES / LINE;
  }
  const int64_t columns = g.b_step == 1 ? lesser(TILE_LANES, block.cols - j - TILE_LANES) : 0;
  for (int64_t c = columns * at / tiles; c < columns * (at + 1) / tiles; ++c)
    for (int64_t k = 0; k < block.depth; k += LINE)
      __builtin_prefetch(next + c * g.b_column + k, 0, 2);
  return false;
}

// The tiles of one block of k, with what they share.
struct Tiles {
  const Gemm &g;
  const Block &block;
  const float *a;
  float *b;
  int64_t count;       // tiles above each other
  int64_t turn;        // tiles that have run
  bool simple, clips;  // simple: at most bounds follow, so that tiles are stored straight into c
  TileSegment whole;
  TileArgs t;
  alignas(64) float acc[TILE_ROWS * TILE_LANES], bias[TILE_LANES];
};

// Points the tiles at the panel of columns that starts at j.
void set_panel(Tiles *tiles, int64_t j, int64_t cols) {
  const Gemm &g = tiles->g;
  const Block &block = tiles->block;
  TileArgs &t = tiles->t;
  const bool direct = !g.packed && !block.packed_b && cols == TILE_LANES;
  if (g.bias) {
    for (int v = 0; v < TILE_VECTORS; ++v)
      vstore(tiles->bias + v * VF, vload_tail(g.bias + block.j0 + j + v * VF,
                                              vtail_of(cols > v * VF ? cols - v * VF : 0)));
    t.bias = tiles->bias;
  }
  t.b = g.packed || direct                  ? panel_of(g, block, j)
        : block.packed_b && !block.by_panel ? tiles->b + j * block.depth
                                            : tiles->b;
  t.b_step = direct ? g.b_step : static_cast<int64_t>(TILE_LANES);
}

// Steps down the gradients of rows whose first one has `at` floats of the parameter before it.
void descend(const Gemm &g, const float *gradients, int64_t step, int64_t at, int64_t rows,
             int64_t cols) {
  const Descent &d = *g.update;
  const bool moves = d.velocity, decays = d.decay != 0.0f;
  const vf rate = vset1(d.rate), momentum = vset1(d.momentum), decay = vset1(d.decay);
  for (int64_t i = 0; i < rows; ++i, at += g.c_row, gradients += step)
    for (int64_t j = 0; j < cols; j += VF) {
      const vtail tail = vtail_of(cols - j);
      const vf param = vload_tail(d.param + at + j, tail);
      // Without decay, a parameter that is not finite must stay out of the velocity.
      const vf grad = decays ? vfma(decay, param, vload(gradients + j)) : vload(gradients + j);
      vf change = grad;
      if (moves) {
        const vf v = vfma(momentum, vload_tail(d.velocity + at + j, tail), grad);
        vstore_tail(d.new_velocity + at + j, v, tail);
        change = d.nesterov ? vfma(momentum, v, grad) : v;
      }
      vstore_tail(g.c + at + j, vfnma(rate, change, param), tail);
    }
}

// Lets a tile end in the strip, and bring a share of what the next rows' gradients will be added to
// near: where rows are whole, memory is then read in its order.
void set_strip(Tiles *tiles, int64_t row, int64_t rows, int64_t j) {
  const Gemm &g = tiles->g;
  const Block &block = tiles->block;
  TileArgs &t = tiles->t;
  const bool whole = block.cols == g.c_row && j + TILE_LANES <= block.cols;
  t.c = block.strip + j;
  t.c_row = strip_row(g.n);
  t.written[0] = t.written[1] = nullptr;
  if (whole && row + 2 * rows > g.m) return;
  const int64_t at = whole ? (row + rows) * g.c_row + j * rows : row * g.c_row + block.j0 + j;
  t.written[0] = g.update->param + at;
  t.written[1] = g.update->velocity ? g.update->velocity + at : nullptr;
  t.written_row = whole ? static_cast<int64_t>(TILE_LANES) : g.c_row;
}

void multiply_tile(Tiles *tiles, int64_t j, int64_t cols, int64_t at) {
  const Gemm &g = tiles->g;
  const Block &block = tiles->block;
  TileArgs &t = tiles->t;
  const int vectors = cols > VF ? 2 : 1;
  const int64_t first = block.rows * at / tiles->count, row = block.i0 + first;
  const int64_t rows = block.rows * (at + 1) / tiles->count - first, column = block.j0 + j;
  const bool straight = tiles->simple && (cols == TILE_LANES || block.strip);
  const bool ahead = fetch_ahead(g, block, j, at, tiles->count, tiles->turn++, &t) || straight;
  if (block.packed_a) {
    t.a = tiles->a + first * block.depth;
    t.a_step = rows;
    t.a_row = 1;
  } else {
    t.a = g.a + row * g.a_row + block.k0 * g.a_step;
    t.a_step = g.a_step;
    t.a_row = g.a_row;
  }
  t.clips = straight && tiles->clips;
  t.residual = straight && block.last && g.residual ? g.residual + row * g.c_row + column : nullptr;
  t.c = straight ? g.c + row * g.c_row + column : tiles->acc;
  t.c_row = straight ? g.c_row : static_cast<int64_t>(vectors * VF);
  if (block.strip) set_strip(tiles, row, rows, j);
  if (!straight && !block.first) load_tile(tiles->acc, g, row, rows, column, cols);
  tile_of(ahead ? TILE_AHEAD : TILE_STRIDED, 1, static_cast<int>(rows), vectors)(&t);
  if (!straight) store_tile(tiles->acc, g, row, rows, column, cols, block.last);
}

void multiply_block(const Gemm &g, const Block &block, const float *a, float *b) {
  const Epilogue bounds = as_clip(g.epilogue);
  Tiles tiles = {g,  block, a, b, tiles_of(block.rows), 0, false, false, {0, 0, block.depth},
                 {}, {},    {}};
  tiles.simple = bounds.activation == ACT_CLIP;
  tiles.clips = block.last && g.epilogue.activation != ACT_IDENTITY;
  tiles.t.segments = &tiles.whole;
  tiles.t.n_segments = 1;
  tiles.t.accumulate = !block.first;
  tiles.t.b_next = VF;
  tiles.t.lower = bounds.lower;
  tiles.t.upper = bounds.upper;
  if (block.by_rows) {
    for (int64_t at = 0; at < tiles.count; ++at) {
      for (int64_t j = 0; j < block.cols; j += TILE_LANES) {
        const int64_t cols = lesser(TILE_LANES, block.cols - j);
        set_panel(&tiles, j, cols);
        multiply_tile(&tiles, j, cols, at);
      }
      const int64_t i = block.rows * at / tiles.count, to = block.rows * (at + 1) / tiles.count;
      if (block.strip)
        descend(g, block.strip, strip_row(g.n), (block.i0 + i) * g.c_row + block.j0, to - i,
                block.cols);
    }
    return;
  }
  for (int64_t j = 0; j < block.cols; j += TILE_LANES) {
    const int64_t cols = lesser(TILE_LANES, block.cols - j);
    if (block.by_panel) pack_b_panel(b, g, block.k0, block.j0 + j, cols, block.depth);
    set_panel(&tiles, j, cols);
    for (int64_t at = 0; at < tiles.count; ++at) multiply_tile(&tiles, j, cols, at);
  }
}

// Packs the panels of b that the block cannot read in place: all, or a last narrow one.
void pack_b(float *to, const Gemm &g, const Block &block) {
  for (int64_t j = 0; j < block.cols; j += TILE_LANES) {
    const int64_t cols = lesser(TILE_LANES, block.cols - j);
    if (block.packed_b)
      pack_b_panel(to + j * block.depth, g, block.k0, block.j0 + j, cols, block.depth);
    else if (cols < TILE_LANES)
      pack_b_panel(to, g, block.k0, block.j0 + j, cols, block.depth);
  }
}

}  // namespace

void multiply_row(const Gemm &g) {
  for (int64_t j = 0; j < g.n; j += TILE_LANES) {
    const float *panel = g.packed + j * g.k;
    // Sums over every fourth k, so that additions need not wait for one another.
    vf sums[4][2];
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) sums[u][0] = sums[u][1] = vzero();
    int64_t k = 0;
    for (; k + 4 <= g.k; k += 4, panel += 4 * TILE_LANES) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        const vf x = vset1(g.a[(k + u) * g.a_step]);
        sums[u][0] = vfma(x, vload(panel + u * TILE_LANES), sums[u][0]);
        sums[u][1] = vfma(x, vload(panel + u * TILE_LANES + VF), sums[u][1]);
      }
    }
    for (; k < g.k; ++k, panel += TILE_LANES) {
      const vf x = vset1(g.a[k * g.a_step]);
      sums[0][0] = vfma(x, vload(panel), sums[0][0]);
      sums[0][1] = vfma(x, vload(panel + VF), sums[0][1]);
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const vf sum = vadd(vadd(sums[0][v], sums[1][v]), vadd(sums[2][v], sums[3][v]));
      vstore_tail(g.c + j + v * VF, sum, vtail_of(g.n - j > v * VF ? g.n - j - v * VF : 0));
    }
  }
}

int64_t gemm_workspace(int64_t m, int64_t n, int64_t k) {
  const int64_t depth = lesser(k, BLOCK_K);
  const int64_t cols = lesser(round_up(n, TILE_LANES), BLOCK_N);
  return round_up((lesser(m, BLOCK_M) + cols) * depth, 16) + 16;
}

int64_t descent_workspace(int64_t m, int64_t n, int64_t k) {
  return gemm_workspace(m, n, k) + TILE_ROWS * strip_row(n);
}

// Notes what is packed when the block has been multiplied, where rows of a lie side by side.
void set_next(Block *block, const Gemm &g) {
  const int64_t row = block->i0 + block->rows < g.m ? block->i0 + block->rows : 0;
  const int64_t k = row > 0 ? block->k0 : block->k0 + block->depth;
  block->next_a = block->next_b = nullptr;
  if (!block->packed_a || g.a_row != 1 || k >= g.k) return;
  block->next_a = g.a + row + k * g.a_step;
  block->next_rows = lesser(BLOCK_M, g.m - row);
  if (row == 0 && block->packed_b && !g.packed && g.b_column == 1)
    block->next_b = g.b + k * g.b_step + block->j0;
}

void gemm(const Gemm &g, float *workspace) {
  const int64_t blocks = g.k > BLOCK_K ? ceil_div(g.k, BLOCK_K) : 1;
  const int64_t depth = ceil_div(g.k, blocks);
  float *const packed_b = workspace;
  float *const packed_a =
      workspace + round_up(lesser(round_up(g.n, TILE_LANES), BLOCK_N) * depth, 16);
  Block block = {};
  // Packing pays once a panel is read several times; rows of a that lie a power of two apart would
  // evict one another from the first-level cache.
  const bool distant = g.a_step == 1 ? g.a_row % 1024 == 0 : g.a_row != 1 && g.a_row % 512 == 0;
  block.packed_a = (g.a_step != 1 && g.n > 3 * TILE_LANES) || distant;
  block.packed_b = g.b_column != 1 || g.m > 3 * TILE_ROWS;
  block.by_panel = !g.packed && block.packed_b && g.m <= BLOCK_M && !g.update;
  block.strip = g.update ? workspace + gemm_workspace(g.m, g.n, g.k) : nullptr;
  for (block.j0 = 0; block.j0 < g.n; block.j0 += BLOCK_N) {
    block.cols = lesser(BLOCK_N, g.n - block.j0);
    block.by_rows = g.update || (!g.packed && block.packed_b && !block.by_panel &&
                                 block.cols >= WIDE && block.cols * depth <= BY_ROWS);
    for (int64_t at = 0; at < blocks; ++at) {
      block.k0 = at * depth;
      block.depth = lesser(depth, g.k - block.k0);
      block.first = at == 0;
      block.last = at == blocks - 1;
      if (!g.packed && !block.by_panel) pack_b(packed_b, g, block);
      for (block.i0 = 0; block.i0 < g.m; block.i0 += BLOCK_M) {
        block.rows = lesser(BLOCK_M, g.m - block.i0);
        set_next(&block, g);
        if (block.packed_a)
          pack_a(packed_a, g.a + block.i0 * g.a_row + block.k0 * g.a_step, g.a_row, g.a_step,
                 block.rows, block.depth);
        multiply_block(g, block, packed_a, packed_b);
      }
    }
  }
}

}  // namespace TY_ISA

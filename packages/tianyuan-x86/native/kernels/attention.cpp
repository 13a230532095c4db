// attention in float32 without the matrix of scores: rows of queries meet the keys block by block,
// and what earlier blocks gave is scaled to the largest score so far (the online softmax of Milakov
// and Gimelshein 2018, over tiles as in Dao et al. 2022). The order of a row's sums depends on its
// keys alone, so that neither threads nor neighbours change a bit.
#include <string.h>

#include "attention.hpp"
#include "dots.hpp"
#include "panels.hpp"

namespace TY_ISA {
namespace {

// Keys of a block and the most rows of a piece, as in src/tianyuan_x86/kernels/attention.py. A
// block of keys stays in the second-level cache, a tile's scores in the first.
enum { KEYS = 256, ROWS = TY_VF == 16 ? 12 * TILE_ROWS : 24 * TILE_ROWS };
enum { THIN = 4 };  // up to so many queries meet keys that are not packed
// One thread's memory. `sums` holds, for every tile, its rows' weighted values in tiles of two
// vectors; `best` and `total` VF values for every tile: a row's largest score and its weights' sum.
struct Scratch {
  float *keys, *values, *scores, *sums, *best, *total, *queries;
};

int64_t floats_of(const Attention &a) {
  const int64_t rows = lesser(a.rows, ROWS), keys = lesser(round_up(a.keys, TILE_LANES), KEYS);
  const int64_t tail = a.width % TILE_LANES ? static_cast<int64_t>(TILE_LANES) : 0;
  return keys * (a.depth + tail + TILE_ROWS) + rows * round_up(a.width, TILE_LANES) +
         2 * VF * tiles_of(rows) + TILE_ROWS * a.depth;
}

Scratch scratch_of(const Attention &a, float *memory) {
  const int64_t rows = lesser(a.rows, ROWS), keys = lesser(round_up(a.keys, TILE_LANES), KEYS);
  const int64_t tail = a.width % TILE_LANES ? static_cast<int64_t>(TILE_LANES) : 0;
  Scratch s;
  s.keys = memory;
  s.values = s.keys + keys * a.depth;
  s.scores = s.values + keys * tail;
  s.sums = s.scores + keys * TILE_ROWS;
  s.best = s.sums + rows * round_up(a.width, TILE_LANES);
  s.total = s.best + VF * tiles_of(rows);
  s.queries = s.total + VF * tiles_of(rows);
  return s;
}

struct Block {
  int64_t first, count;  // keys
  bool start;            // no block was before it
};

// Keys times the scale, transposed, in panels.
void pack_keys(const Attention &a, const Block &block, const Scratch &s) {
  const vf scale = vset1(a.scale);
  for (int64_t j = 0; j < round_up(block.count, TILE_LANES); j += VF) {
    const float *from = a.key + (block.first + j) * a.key_row;
    float *to = s.keys + j / TILE_LANES * TILE_LANES * a.depth + j % TILE_LANES;
    for (int64_t k = 0; k < a.depth; k += VF) {
      const int64_t some = lesser(VF, a.depth - k);
      vf columns[VF];
      vload_columns(columns, from + k, a.key_row, block.count - j, some);
      for (int64_t r = 0; r < some; ++r) vstore(to + (k + r) * TILE_LANES, vmul(columns[r], scale));
    }
  }
}

// Packs a block's keys, and those columns of its values that fill no panel.
void pack_block(const Attention &a, const Block &block, const Scratch &s) {
  if (a.rows > THIN) pack_keys(a, block, s);
  const int64_t whole = a.width / TILE_LANES * TILE_LANES;
  if (whole < a.width && a.rows > 1)
    pack_b_rows(s.values, a.value + block.first * a.value_row + whole, a.value_row, a.width - whole,
                block.count);
}

// Rows [row, row + height) of the queries and what they sum up in.
struct Tile {
  int64_t row, height;
  float *sums, *best, *total;
};

// The scores of few queries by dot products; scaled queries lie where packed keys would.
void score_thin(const Attention &a, const Tile &tile, const Block &block, int64_t count,
                const Scratch &s) {
  for (int64_t r = 0; r < tile.height; ++r)
    for (int64_t i = 0; i < a.depth; ++i)
      s.keys[r * a.depth + i] = a.query[(tile.row + r) * a.query_row + i] * a.scale;
  for (int64_t j = 0; j < count; j += TILE_LANES)
    multiply_dots(s.keys, a.depth, tile.height, a.key + (block.first + j) * a.key_row, a.key_row,
                  lesser(TILE_LANES, count - j), a.depth, s.scores + j * tile.height, TILE_LANES);
}

// Copies queries whose rows lie multiples of 4 KiB apart, and would evict one another.
const float *queries_of(const Attention &a, const Tile &tile, const Scratch &s, int64_t *row) {
  const float *from = a.query + tile.row * a.query_row;
  *row = a.query_row;
  if (a.query_row % 1024 != 0) return from;
  *row = a.depth;
  for (int64_t r = 0; r < tile.height; ++r, from += a.query_row)
    memcpy(s.queries + r * a.depth, from, static_cast<size_t>(a.depth) * sizeof(float));
  return s.queries;
}

// Scores of a tile, in panels [TILE_LANES keys][row][key].
void score(const Attention &a, const Tile &tile, const Block &block, int64_t count,
           const Scratch &s) {
  if (a.rows <= THIN) return score_thin(a, tile, block, count, s);
  const TileSegment whole = {0, 0, a.depth};
  TileArgs t = {};
  t.a = queries_of(a, tile, s, &t.a_row);
  t.a_step = 1;
  t.b_step = TILE_LANES;
  t.b_next = VF;
  t.segments = &whole;
  t.n_segments = 1;
  const TileRun run = tile_of(TILE_STRIDED, 1, static_cast<int>(tile.height), 2);
  for (int64_t j = 0; j < count; j += TILE_LANES) {
    t.b = s.keys + j * a.depth;
    t.c = s.scores + j * tile.height;
    run(&t);
  }
}

// The largest lanes of one row's scores, which fill panels and have no mask.
TY_INLINE vf best_lanes(const Tile &tile, int64_t r, int64_t count, const float *scores) {
  const float *at = scores + r * TILE_LANES;
  vf left = vneg(vinf()), right = left;
  for (int64_t j = 0; j < count; j += TILE_LANES, at += TILE_LANES * tile.height) {
    left = vmax_fast(vload(at), left);
    right = vmax_fast(vload(at + VF), right);
  }
  return vmax_fast(left, right);
}

// Applies the mask to one row's scores and returns the largest lanes; those behind the keys are
// -inf. NaN is passed over: it comes back as a weight.
TY_INLINE vf mask_row(const Attention &a, const Tile &tile, int64_t r, const Block &block,
                      int64_t count, float *scores, bool masks) {
  vf best = vneg(vinf());
  for (int64_t j = 0; j < round_up(count, TILE_LANES); j += VF) {
    float *at =
        scores + j / TILE_LANES * TILE_LANES * tile.height + r * TILE_LANES + j % TILE_LANES;
    vf x = vload(at);
    const int64_t some = j < count ? lesser(VF, count - j) : 0;
    if (masks && some > 0) x = masked(a, tile.row + r, block.first + j, some, x);
    if (some < VF) x = vselect(vtail_mask(vtail_of(some)), x, vneg(vinf()));
    if (masks || some < VF) vstore(at, x);
    best = vmax_fast(x, best);
  }
  return best;
}

// e^x for x <= 0, right to 2e-7 of itself and 2e-8 |x|; 0 for -inf, NaN for NaN.
TY_INLINE vf weight_of(vf x) {
  static const float c[] = {1.0f, 0.693147182f, 0.240226507f, 0.0555041f, 0.00961812f, 0.00133336f};
  const vf log2e = vset1(1.44269504f);
  x = vmax_fast(vset1(-150.0f), x);
  const vf n = vround(vmul(x, log2e));
  return scale_by_pow2(vpoly(vfma(x, log2e, vneg(n)), c, 5), n);
}

// Turns one row's scores into weights relative to `shift` and returns lanes of their sum. Hidden
// keys count in it, as in the op's definition, but add nothing to the values.
TY_INLINE vf weigh_row(const Tile &tile, int64_t r, int64_t count, float *scores, float shift,
                       bool hides) {
  const vf by = vset1(shift);
  vf sum = vzero();
  for (int64_t j = 0; j < round_up(count, TILE_LANES); j += TILE_LANES) {
    float *at = scores + j * tile.height + r * TILE_LANES;
    const vf x = vload(at), y = vload(at + VF);
    const vf p = weight_of(vsub(x, by)), q = weight_of(vsub(y, by));
    sum = vadd(sum, vadd(p, q));
    vstore(at, hides ? vselect(veq(x, vset1(LOWEST)), vzero(), p) : p);
    vstore(at + VF, hides ? vselect(veq(y, vset1(LOWEST)), vzero(), q) : q);
  }
  return sum;
}

// Turns lanes of every row into a lane for every row: their largest, or their sum.
enum Across { LARGEST, SUM };
template <Across WHAT>
TY_INLINE vf across(vf *rows) {
  vtranspose(rows);
#pragma GCC unroll 4
  for (int step = VF / 2; step > 0; step /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < step; ++i)
      rows[i] = WHAT == SUM ? vadd(rows[i], rows[i + step]) : vmax_fast(rows[i], rows[i + step]);
  return rows[0];
}

// Adds N vectors of columns of one row's weighted values. Each sum runs over even and odd keys
// apart, so that additions need not wait for one another.
template <int N>
void add_columns(const float *weights, const float *values, int64_t step, int64_t count, vtail tail,
                 bool start, float *sums) {
  vf even[N], odd[N];
#pragma GCC unroll 4
  for (int v = 0; v < N; ++v) {
    even[v] = start ? vzero() : vload(sums + v * VF);
    odd[v] = vzero();
  }
  const auto load = [&](const float *at) { return N > 1 ? vload(at) : vload_tail(at, tail); };
  int64_t k = 0;
  for (; k + 2 <= count; k += 2, values += 2 * step) {
    const vf left = vset1(weights[k]), right = vset1(weights[k + 1]);
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      even[v] = vfma(left, load(values + v * VF), even[v]);
      odd[v] = vfma(right, load(values + step + v * VF), odd[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < N; ++v) {
    if (k < count) even[v] = vfma(vset1(weights[k]), load(values + v * VF), even[v]);
    vstore(sums + v * VF, vadd(even[v], odd[v]));
  }
}

// Adds one row's weighted values; of a tile of one row, weights and sums are contiguous.
void accumulate_row(const Attention &a, const Tile &tile, const Block &block, int64_t count,
                    const float *weights) {
  const float *values = a.value + block.first * a.value_row;
  int64_t j = 0;
  for (; j + 4 * VF <= a.width; j += 4 * VF)
    add_columns<4>(weights, values + j, a.value_row, count, vtail_of(VF), block.start,
                   tile.sums + j);
  for (; j < a.width; j += VF)
    add_columns<1>(weights, values + j, a.value_row, count, vtail_of(a.width - j), block.start,
                   tile.sums + j);
}

// Adds a tile's weights times the values of the block to its sums.
void accumulate(const Attention &a, const Tile &tile, const Block &block, int64_t count,
                const Scratch &s) {
  if (a.rows == 1) return accumulate_row(a, tile, block, count, s.scores);
  TileSegment segments[KEYS / TILE_LANES];
  const int64_t whole = a.width / TILE_LANES * TILE_LANES;
  TileArgs t = {};
  t.a = s.scores;
  t.a_row = TILE_LANES;
  t.a_step = 1;
  t.b_next = VF;
  t.segments = segments;
  t.n_segments = ceil_div(count, TILE_LANES);
  t.accumulate = !block.start;
  for (int64_t j = 0; j < a.width; j += TILE_LANES) {
    const bool direct = j < whole;
    t.b = direct ? a.value + block.first * a.value_row + j : s.values;
    t.b_step = direct ? a.value_row : static_cast<int64_t>(TILE_LANES);
    t.c = tile.sums + j * tile.height;
    for (int64_t i = 0; i < t.n_segments; ++i)
      segments[i] = {i * TILE_LANES * tile.height, i * TILE_LANES * t.b_step,
                     lesser(TILE_LANES, count - i * TILE_LANES)};
    const int vectors = a.width - j > VF ? 2 : 1;
    tile_of(TILE_STRIDED, 1, static_cast<int>(tile.height), vectors)(&t);
  }
}

// Floats between rows of a tile of sums, and where the tile of column j lies.
TY_INLINE int64_t row_step(const Attention &a, int64_t j) {
  return a.width - j > VF ? static_cast<int64_t>(TILE_LANES) : static_cast<int64_t>(VF);
}

void rescale(const Attention &a, const Tile &tile, vf factors) {
  float factor[VF];
  vstore(factor, factors);
  for (int64_t r = 0; r < tile.height; ++r) {
    if (factor[r] == 1.0f) continue;
    const vf by = vset1(factor[r]);
    for (int64_t j = 0; j < a.width; j += TILE_LANES) {
      float *at = tile.sums + j * tile.height + r * row_step(a, j);
      for (int64_t i = 0; i < row_step(a, j); i += VF) vstore(at + i, vmul(vload(at + i), by));
    }
  }
}

void attend(const Attention &a, const Tile &tile, const Block &block, const Scratch &s) {
  int64_t count = block.count;
  if (a.causal) count = lesser(count, tile.row + tile.height - block.first);
  if (count <= 0) return;
  score(a, tile, block, count, s);
  const bool hides = a.causal || a.truth, masks = hides || a.added;
  const vf low = vneg(vinf()), before = block.start ? low : vload(tile.best);
  vf rows[VF];
  for (int64_t r = 0; r < VF; ++r)
    rows[r] = r >= tile.height ? low
              : masks || count % TILE_LANES != 0
                  ? mask_row(a, tile, r, block, count, s.scores, masks)
                  : best_lanes(tile, r, count, s.scores);
  const vf best = vmax_fast(across<LARGEST>(rows), before);
  // Where every score so far is -inf, weights are relative to 0, and are 0.
  const vf by = vselect(veq(best, low), vzero(), best), factor = vexp(vsub(before, by));
  float shift[VF];
  vstore(shift, by);
  for (int64_t r = 0; r < VF; ++r)
    rows[r] = r < tile.height ? weigh_row(tile, r, count, s.scores, shift[r], hides) : vzero();
  const vf sum = across<SUM>(rows);
  vstore(tile.best, best);
  vstore(tile.total, block.start ? sum : vfma(vload(tile.total), factor, sum));
  if (!block.start) rescale(a, tile, factor);
  accumulate(a, tile, block, count, s);
}

void finish(const Attention &a, const Tile &tile) {
  float factors[VF];
  vstore(factors, vdiv(vset1(1.0f), vload(tile.total)));
  for (int64_t r = 0; r < tile.height; ++r) {
    const vf factor = vset1(factors[r]);
    float *to = a.out + (tile.row + r) * a.out_row;
    int64_t j = 0;
    for (; j + TILE_LANES <= a.width; j += TILE_LANES) {
      const float *from = tile.sums + j * tile.height + r * TILE_LANES;
      vstore(to + j, vmul(vload(from), factor));
      vstore(to + j + VF, vmul(vload(from + VF), factor));
    }
    for (; j < a.width; j += VF) {
      const int64_t panel = j / TILE_LANES * TILE_LANES;
      const float *from = tile.sums + panel * tile.height + r * row_step(a, panel) + j - panel;
      vstore_tail(to + j, vmul(vload(from), factor), vtail_of(a.width - j));
    }
  }
}

// Rows [begin, end) of one item.
void run_rows(const Attention &a, int64_t begin, int64_t end, const Scratch &s) {
  const int64_t rows = end - begin, tiles = tiles_of(rows);
  const int64_t keys = a.causal ? lesser(a.keys, end) : a.keys;
  const int64_t wide = round_up(a.width, TILE_LANES);
  const auto tile_at = [&](int64_t i) {
    const int64_t first = rows * i / tiles;
    return Tile{begin + first, rows * (i + 1) / tiles - first, s.sums + first * wide,
                s.best + i * VF, s.total + i * VF};
  };
  for (int64_t at = 0; at < keys; at += KEYS) {
    const Block block = {at, lesser(KEYS, keys - at), at == 0};
    pack_block(a, block, s);
    for (int64_t i = 0; i < tiles; ++i) attend(a, tile_at(i), block, s);
  }
  for (int64_t i = 0; i < tiles; ++i) finish(a, tile_at(i));
}

int run(const ty_ctx *ctx, const Attention &a, void *workspace) {
  const int64_t size = a.batch * a.rows * a.width;
  if (size == 0) return 0;
  if (a.keys == 0) {
    memset(a.out, 0, static_cast<size_t>(size) * sizeof(float));
    return 0;
  }
  // Few items are cut further, so that every thread gets some rows.
  int64_t parts = ceil_div(a.rows, ROWS);
  const int64_t wanted = ceil_div(ctx->threads, a.batch);
  if (parts < wanted) parts = lesser(wanted, tiles_of(a.rows));
  const double work = 2.0 * static_cast<double>(a.rows / parts + 1) * static_cast<double>(a.keys) *
                      static_cast<double>(a.depth + a.width + 1);
  const int64_t grain = work > 2e5 ? 1 : static_cast<int64_t>(2e5 / work) + 1;
  const int64_t per_slot = round_up(floats_of(a), 16);
  ty_parallel(ctx, a.batch * parts, grain, [&](int64_t begin, int64_t end, int32_t slot) {
    const Scratch s = scratch_of(a, static_cast<float *>(workspace) + slot * per_slot);
    for (int64_t at = begin; at < end; ++at) {
      const int64_t part = at % parts;
      run_rows(item_of(a, at / parts), a.rows * part / parts, a.rows * (part + 1) / parts, s);
    }
  });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(attention,
                  TY_KERNEL((attention_kernel<ty_attention_attrs, run>), "attention_f32",
                            "streaming"),
                  TY_KERNEL((attention_kernel<ty_attention_heads_attrs, run>),
                            "attention_heads_f32", "streaming"))

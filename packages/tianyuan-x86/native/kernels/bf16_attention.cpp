// attention in float32 whose products are taken in bfloat16: a tile of queries meets all keys at
// once, its scores and their exponentials are float32, and the weights are rounded again.
#include <string.h>

#include "attention.hpp"
#include "bf16.hpp"

namespace TY_ISA {
namespace {

enum { PANEL = 2 * VF };

// Bytes of a row of pairs; more than a power of two, so that rows do not meet in a cache's sets.
int64_t row_bytes(int64_t values) { return round_up(2 * values, 64) + 64; }

// One thread's memory: rounded queries, panels of keys and values, a tile's scores and weights.
struct Scratch {
  char *queries;
  float *keys, *values, *scores;
  char *weights;
};

Scratch scratch_of(const Attention &a, char *memory) {
  const int64_t keys = round_up(a.keys, PANEL);
  Scratch s;
  s.queries = memory;
  s.keys = reinterpret_cast<float *>(memory + a.rows * row_bytes(a.depth));
  s.values = s.keys + keys * ((a.depth + 1) / 2);
  s.scores = s.values + round_up(a.width, PANEL) * ((a.keys + 1) / 2);
  s.weights = reinterpret_cast<char *>(s.scores + TILE_ROWS * keys);
  return s;
}

int64_t bytes_of(const Attention &a) {
  const int64_t keys = round_up(a.keys, PANEL);
  const int64_t words =
      keys * ((a.depth + 1) / 2) + round_up(a.width, PANEL) * ((a.keys + 1) / 2) + TILE_ROWS * keys;
  return round_up(
      a.rows * row_bytes(a.depth) + 4 * words + TILE_ROWS * row_bytes(round_up(a.keys, PANEL)), 64);
}

void round_queries(const Attention &a, char *to) {
  for (int64_t row = 0; row < a.rows; ++row) {
    uint16_t *out = reinterpret_cast<uint16_t *>(to + row * row_bytes(a.depth));
    for (int64_t i = 0; i < a.depth; i += VF)
      vstore_element(out + i, vload_tail(a.query + row * a.query_row + i, vtail_of(a.depth - i)));
  }
}

// Keys lie along lanes, pairs of their elements in words.
void pack_keys(const Attention &a, float *to) {
  const int64_t pairs = (a.depth + 1) / 2;
  for (int64_t j = 0; j < round_up(a.keys, PANEL); j += VF) {
    float *panel = to + j / PANEL * PANEL * pairs + j % PANEL;
    for (int64_t i = 0; i < a.depth; i += 2 * VF) {
      const vtail low = vtail_of(a.depth - i);
      const vtail high = vtail_of(a.depth - i > VF ? a.depth - i - VF : 0);
      vf block[VF];
#pragma GCC unroll 16
      for (int r = 0; r < VF; ++r) {
        const bool there = j + r < a.keys;
        const float *from = a.key + (there ? j + r : 0) * a.key_row + i;
        block[r] = there
                       ? (vf)_mm512_cvtne2ps_pbh(vload_tail(from + VF, high), vload_tail(from, low))
                       : vzero();
      }
      vtranspose(block);
      for (int64_t p = 0; p < lesser(VF, pairs - i / 2); ++p)
        vstore(panel + (i / 2 + p) * PANEL, block[p]);
    }
  }
}

// Columns of the values lie along lanes, neighbouring keys in words.
void pack_values(const Attention &a, float *to) {
  alignas(64) static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                 21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i index = _mm512_load_si512(order);
  const int64_t pairs = (a.keys + 1) / 2;
  for (int64_t j = 0; j < round_up(a.width, PANEL); j += VF) {
    float *panel = to + j / PANEL * PANEL * pairs + j % PANEL;
    const vtail tail = vtail_of(a.width > j ? a.width - j : 0);
    for (int64_t p = 0; p < pairs; ++p) {
      const float *from = a.value + 2 * p * a.value_row + j;
      const vf even = vload_tail(from, tail);
      const vf odd = 2 * p + 1 < a.keys ? vload_tail(from + a.value_row, tail) : vzero();
      const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
      vstore(panel + p * PANEL, (vf)_mm512_permutexvar_epi16(index, both));
    }
  }
}

// e^x for x <= 0 to 2e-6 of itself, 0 below the range.
TY_INLINE vf exponential(vf x) {
  static const float c[] = {1.0f, 0.693147182f, 0.240226507f, 0.0555041f, 0.00961812f, 0.00133336f};
  const vf t = vmul(vmax_fast(vset1(-200.0f), x), vset1(1.44269504f)), n = vround(t);
  return _mm512_scalef_ps(vpoly(vsub(t, n), c, 5), n);
}

// Turns a row of scores into rounded weights relative to the largest, and returns 1 over their sum.
float weigh(const Attention &a, int64_t row, float *scores, uint16_t *weights) {
  const vf scale = vset1(a.scale);
  vf best = vneg(vinf());
  for (int64_t j = 0; j < a.keys; j += VF) {
    const vtail some = vtail_of(a.keys - j);
    vf x = vmul(vload(scores + j), scale);
    if (a.added) {
      const float *at = a.added + row * a.mask_row + j * a.mask_step;
      x = vadd(x, a.mask_step ? vload_tail(at, some) : vset1(*at));
    }
    x = vselect(vtail_mask(some), x, vneg(vinf()));
    vstore(scores + j, x);
    best = vmax_fast(x, best);
  }
  // Where every score is -inf, weights are relative to 0, and are 0.
  const float largest = _mm512_reduce_max_ps(best);
  const vf by = vset1(largest == -__builtin_inff() ? 0.0f : largest);
  vf sum = vzero();
  for (int64_t j = 0; j < a.keys; j += VF) {
    const vf p = exponential(vsub(vload(scores + j), by));
    sum = vadd(sum, p);
    vstore_element(weights + j, p);
  }
  return 1.0f / vhsum(sum);
}

// Multiplies rows of pairs by all panels of the other operand, into rows of float32.
void multiply(const char *rows, int64_t row_step, int height, const float *panels, int64_t pairs,
              float *to, int64_t columns, int64_t to_row) {
  const TileSegment segment = {0, 0, pairs};
  PairTile t = {};
  t.a = rows;
  t.a_row = row_step;
  t.segments = &segment;
  t.n_segments = 1;
  t.b_step = PANEL;
  t.b_next = VF;
  t.y_row = to_row;
  t.y_next = VF;
  t.epilogue = as_clip({ACT_IDENTITY, 0.0f, 0.0f});
  for (int64_t j = 0; j < columns; j += PANEL) {
    const bool two = columns - j > VF;
    t.b = panels + j * pairs;
    t.y = to + j;
    t.valid[0] = vtail_of(columns - j);
    t.valid[1] = vtail_of(two ? columns - j - VF : 0);
    pair_tile_of(PAIR_MATRIX, 1, height, two ? 2 : 1)(&t);
  }
}

void run_item(const Attention &a, char *memory) {
  const Scratch s = scratch_of(a, memory);
  const int64_t keys = round_up(a.keys, PANEL), weights = row_bytes(keys);
  round_queries(a, s.queries);
  pack_keys(a, s.keys);
  pack_values(a, s.values);
  const int64_t tiles = (a.rows + TILE_ROWS - 1) / TILE_ROWS;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t first = t * a.rows / tiles;
    const int height = static_cast<int>((t + 1) * a.rows / tiles - first);
    multiply(s.queries + first * row_bytes(a.depth), row_bytes(a.depth), height, s.keys,
             (a.depth + 1) / 2, s.scores, keys, keys);
    float factors[TILE_ROWS];
    for (int r = 0; r < height; ++r)
      factors[r] = weigh(a, first + r, s.scores + r * keys,
                         reinterpret_cast<uint16_t *>(s.weights + r * weights));
    float *out = a.out + first * a.out_row;
    multiply(s.weights, weights, height, s.values, (a.keys + 1) / 2, out, a.width, a.out_row);
    for (int r = 0; r < height; ++r)
      for (int64_t j = 0; j < a.width; j += VF) {
        float *at = out + r * a.out_row + j;
        const vtail tail = vtail_of(a.width - j);
        vstore_tail(at, vmul(vload_tail(at, tail), vset1(factors[r])), tail);
      }
  }
}

int run(const ty_ctx *ctx, const Attention &a, void *workspace) {
  // Few items are cut further, so that every thread gets some rows.
  const int64_t parts =
      a.batch < ctx->threads ? lesser((ctx->threads + a.batch - 1) / a.batch, a.rows) : 1;
  const int64_t per_slot = bytes_of(a);
  ty_parallel(ctx, a.batch * parts, 1, [&](int64_t begin, int64_t end, int32_t slot) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t first = at % parts * a.rows / parts;
      Attention part = item_of(a, at / parts);
      part.rows = (at % parts + 1) * a.rows / parts - first;
      part.query += first * a.query_row;
      part.out += first * a.out_row;
      if (part.added) part.added += first * a.mask_row;
      run_item(part, static_cast<char *>(workspace) + slot * per_slot);
    }
  });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(bf16_attention,
                  TY_KERNEL((attention_kernel<ty_attention_attrs, run>), "attention_bf16", "whole"),
                  TY_KERNEL((attention_kernel<ty_attention_heads_attrs, run>),
                            "attention_heads_bf16", "whole"))

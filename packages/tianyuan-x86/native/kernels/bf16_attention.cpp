// attention in float32 whose products are taken in bfloat16: a tile of queries meets all keys at
// once, its scores and their exponentials are float32, and the weights are rounded again.
#include <string.h>

#include "attention.hpp"
#include "bf16_matmul.hpp"

namespace TY_ISA {
namespace {

enum { PANEL = 2 * VF };

constexpr float LOG2E = 1.44269504f;

// Operands and result of a batch item: rows of float32, or of values that are kept in bfloat16.
template <typename E>
struct Part {
  const E *query, *key, *value;
  const float *added;
  E *out;
  int64_t rows;
};

// One thread's memory: rounded queries, panels of keys and values, a tile's scores and weights.
// Sums of values take the place of scores.
struct Scratch {
  char *queries;
  float *keys, *values, *scores;
  char *weights;
};

int64_t score_floats(const Attention &a) {
  return TILE_ROWS * greater(round_up(a.keys, PANEL), round_up(a.width, PANEL));
}

Scratch scratch_of(const Attention &a, char *memory) {
  const int64_t keys = round_up(a.keys, PANEL);
  Scratch s;
  s.queries = memory;
  s.keys = reinterpret_cast<float *>(memory + a.rows * pair_row_bytes(a.depth));
  s.values = s.keys + keys * ((a.depth + 1) / 2);
  s.scores = s.values + round_up(a.width, PANEL) * ((a.keys + 1) / 2);
  s.weights = reinterpret_cast<char *>(s.scores + score_floats(a));
  return s;
}

int64_t bytes_of(const Attention &a) {
  const int64_t keys = round_up(a.keys, PANEL);
  const int64_t words =
      keys * ((a.depth + 1) / 2) + round_up(a.width, PANEL) * ((a.keys + 1) / 2) + score_floats(a);
  return round_up(a.rows * pair_row_bytes(a.depth) + 4 * words + TILE_ROWS * pair_row_bytes(keys),
                  64);
}

TY_INLINE __mmask32 pairs_tail(int64_t n) {
  return n >= PANEL ? ~__mmask32{0} : (__mmask32{1} << n) - 1;
}

// 32 values of which `n` are there, as pairs.
TY_INLINE __m512i load_pairs(const float *from, int64_t n) {
  const vf low = vload_tail(from, vtail_of(n));
  return (__m512i)_mm512_cvtne2ps_pbh(vload_tail(from + VF, vtail_of(n > VF ? n - VF : 0)), low);
}

TY_INLINE __m512i load_pairs(const uint16_t *from, int64_t n) {
  return _mm512_maskz_loadu_epi16(pairs_tail(n), from);
}

// 16 values of one row, of which `tail` are there, before 16 of another, or zeros for NULL.
TY_INLINE __m512i load_both(const float *even, const float *odd, vtail tail) {
  return (__m512i)_mm512_cvtne2ps_pbh(odd ? vload_tail(odd, tail) : vzero(),
                                      vload_tail(even, tail));
}

TY_INLINE __m512i load_both(const uint16_t *even, const uint16_t *odd, vtail tail) {
  const __m512i low = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(tail, even));
  const __m256i high = odd ? _mm256_maskz_loadu_epi16(tail, odd) : _mm256_setzero_si256();
  return _mm512_inserti64x4(low, high, 1);
}

TY_INLINE void store_some(float *to, vf x, vtail tail) { vstore_tail(to, x, tail); }

TY_INLINE void store_some(uint16_t *to, vf x, vtail tail) {
  _mm256_mask_storeu_epi16(to, tail, (__m256i)_mm512_cvtneps_pbh(x));
}

// Where rows of pairs begin, and their distance in bytes.
struct Queries {
  const char *at;
  int64_t row;
};

Queries queries_of(const Attention &a, const Part<float> &part, char *to) {
  for (int64_t row = 0; row < part.rows; ++row) {
    uint16_t *out = reinterpret_cast<uint16_t *>(to + row * pair_row_bytes(a.depth));
    const float *from = part.query + row * a.query_row;
    for (int64_t i = 0; i < a.depth; i += VF)
      vstore_element(out + i, vload_tail(from + i, vtail_of(a.depth - i)));
  }
  return {to, pair_row_bytes(a.depth)};
}

// Kept values are read where they lie: their depth is even.
Queries queries_of(const Attention &a, const Part<uint16_t> &part, char *) {
  return {reinterpret_cast<const char *>(part.query), 2 * a.query_row};
}

// Keys lie along lanes, pairs of their elements in words.
template <typename E>
void pack_keys(const Attention &a, const E *keys, float *to) {
  const int64_t pairs = (a.depth + 1) / 2;
  for (int64_t j = 0; j < round_up(a.keys, PANEL); j += VF) {
    float *panel = to + j / PANEL * PANEL * pairs + j % PANEL;
    for (int64_t i = 0; i < a.depth; i += 2 * VF) {
      vf block[VF];
#pragma GCC unroll 16
      for (int r = 0; r < VF; ++r) {
        const bool there = j + r < a.keys;
        const E *from = keys + (there ? j + r : 0) * a.key_row + i;
        block[r] = there ? (vf)load_pairs(from, a.depth - i) : vzero();
      }
      vtranspose(block);
      for (int64_t p = 0; p < lesser(VF, pairs - i / 2); ++p)
        vstore(panel + (i / 2 + p) * PANEL, block[p]);
    }
  }
}

// Columns of the values lie along lanes, neighbouring keys in words.
template <typename E>
void pack_values(const Attention &a, const E *values, float *to) {
  alignas(64) static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                 21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i index = _mm512_load_si512(order);
  const int64_t pairs = (a.keys + 1) / 2;
  for (int64_t j = 0; j < round_up(a.width, PANEL); j += VF) {
    float *panel = to + j / PANEL * PANEL * pairs + j % PANEL;
    const vtail tail = vtail_of(a.width > j ? a.width - j : 0);
    for (int64_t p = 0; p < pairs; ++p) {
      const E *from = values + 2 * p * a.value_row + j;
      const __m512i both = load_both(from, 2 * p + 1 < a.keys ? from + a.value_row : nullptr, tail);
      vstore(panel + p * PANEL, (vf)_mm512_permutexvar_epi16(index, both));
    }
  }
}

// 2^x to 8e-5 of itself, which is far below what its rounding errs by; 0 below the range.
TY_INLINE vf power_of_two(vf x) {
  static const float c[] = {0.999928057f, 0.693260968f, 0.242611125f, 0.0551716685f};
  const vf t = vmax_fast(vset1(-200.0f), x), n = vround(t);
  return _mm512_scalef_ps(vpoly(vsub(t, n), c, 3), n);
}

// Scales a row of scores and adds its mask, in place.
void mask_row(const Attention &a, const float *added, float *scores) {
  for (int64_t j = 0; j < a.keys; j += VF) {
    const float *at = added + j * a.mask_step;
    const vf more = a.mask_step ? vload_tail(at, vtail_of(a.keys - j)) : vset1(*at);
    vstore(scores + j, vfma(vload(scores + j), vset1(a.scale), more));
  }
}

// The largest score of a row, still without `scale`, in units of log2 e.
float most_of(int64_t keys, float scale, const float *scores) {
  vf best = vneg(vinf());
  const int64_t whole = keys - keys % VF;
  for (int64_t j = 0; j < whole; j += VF)
    best = vmax_fast(vmul(vload(scores + j), vset1(scale)), best);
  if (whole < keys) {
    const vf x = vmul(vload(scores + whole), vset1(scale));
    best = vmax_fast(vselect(vtail_mask(vtail_of(keys - whole)), x, best), best);
  }
  // Where every score is -inf, weights are relative to 0, and are 0.
  const float most = largest(best);
  return most == -__builtin_inff() ? 0.0f : most * LOG2E;
}

// Turns a row of scores into rounded weights relative to the largest, and returns their sums.
vf weigh(int64_t keys, float scale, float most, const float *scores, uint16_t *weights) {
  const vf factor = vset1(scale * LOG2E), by = vset1(most);
  const int64_t whole = keys - keys % VF;
  vf sum = vzero();
  for (int64_t j = 0; j < whole; j += VF) {
    const vf p = power_of_two(vfms(vload(scores + j), factor, by));
    sum = vadd(sum, p);
    vstore_element(weights + j, p);
  }
  if (whole < keys) {
    const vf p = power_of_two(vfms(vload(scores + whole), factor, by));
    const vf there = vselect(vtail_mask(vtail_of(keys - whole)), p, vzero());
    sum = vadd(sum, there);
    vstore_element(weights + whole, there);
  }
  return sum;
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

template <typename E>
void run_item(const Attention &a, const Part<E> &part, char *memory) {
  const Scratch s = scratch_of(a, memory);
  const int64_t keys = round_up(a.keys, PANEL), weights = pair_row_bytes(keys);
  const int64_t width = round_up(a.width, PANEL);
  const Queries queries = queries_of(a, part, s.queries);
  pack_keys(a, part.key, s.keys);
  pack_values(a, part.value, s.values);
  const int64_t tiles = tiles_of(part.rows);
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t first = t * part.rows / tiles;
    const int height = static_cast<int>((t + 1) * part.rows / tiles - first);
    multiply(queries.at + first * queries.row, queries.row, height, s.keys, (a.depth + 1) / 2,
             s.scores, keys, keys);
    // Steps by rows, as each of them waits for sums and maxima of a row.
    const float scale = part.added ? 1.0f : a.scale;
    float most[TILE_ROWS], factors[TILE_ROWS];
    vf sums[TILE_ROWS];
    if (part.added)
      for (int r = 0; r < height; ++r)
        mask_row(a, part.added + (first + r) * a.mask_row, s.scores + r * keys);
    for (int r = 0; r < height; ++r) most[r] = most_of(a.keys, scale, s.scores + r * keys);
    for (int r = 0; r < height; ++r)
      sums[r] = weigh(a.keys, scale, most[r], s.scores + r * keys,
                      reinterpret_cast<uint16_t *>(s.weights + r * weights));
    for (int r = 0; r < height; ++r) factors[r] = 1.0f / vhsum(sums[r]);
    multiply(s.weights, weights, height, s.values, (a.keys + 1) / 2, s.scores, width, width);
    for (int r = 0; r < height; ++r)
      for (int64_t j = 0; j < a.width; j += VF)
        store_some(part.out + (first + r) * a.out_row + j,
                   vmul(vload(s.scores + r * width + j), vset1(factors[r])), vtail_of(a.width - j));
  }
}

template <typename E>
int run(const ty_ctx *ctx, const Attention &a, const Part<E> &whole, void *workspace) {
  if (a.batch * a.rows * a.width == 0) return 0;
  // Few items are cut further, so that every thread gets some rows.
  const int64_t parts =
      a.batch < ctx->threads ? lesser(ceil_div(ctx->threads, a.batch), a.rows) : 1;
  const int64_t per_slot = bytes_of(a);
  ty_parallel(ctx, a.batch * parts, 1, [&](int64_t begin, int64_t end, int32_t slot) {
    for (int64_t at = begin; at < end; ++at) {
      const auto offset = [&](int i) {
        return batch_offset(a.dims, a.extents, a.strides[i], at / parts);
      };
      const int64_t first = at % parts * a.rows / parts, last = (at % parts + 1) * a.rows / parts;
      const Part<E> part = {
          whole.query + offset(0) + first * a.query_row,
          whole.key + offset(1),
          whole.value + offset(2),
          whole.added ? whole.added + offset(3) + first * a.mask_row : nullptr,
          whole.out + offset(4) + first * a.out_row,
          last - first,
      };
      run_item(a, part, static_cast<char *>(workspace) + slot * per_slot);
    }
  });
  return 0;
}

int run_plain(const ty_ctx *ctx, const Attention &a, void *workspace) {
  return run(ctx, a, Part<float>{a.query, a.key, a.value, a.added, a.out, a.rows}, workspace);
}

// Heads in columns of rows that are kept in bfloat16 (PAIR_ROW of bf16_matmul.hpp).
int heads_of_pairs(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                   const ty_attrs *attrs, void *workspace) {
  const auto *own = reinterpret_cast<const ty_attention_heads_attrs *>(attrs);
  Attention a = attention_of(inputs, attrs->n_inputs, outputs[0], own);
  const uint16_t *from[3];
  int64_t *const rows[] = {&a.query_row, &a.key_row, &a.value_row};
  for (int i = 0; i < 3; ++i) {
    const int64_t columns = inputs[i].shape[inputs[i].ndim - 1];
    *rows[i] = pair_row_bytes(columns) / 2;
    a.strides[i][0] = a.strides[i][0] / columns * *rows[i];
    from[i] = static_cast<const uint16_t *>(inputs[i].data) + TY_INTS(own, own->starts)[i];
  }
  a.out_row = pair_row_bytes(a.extents[1] * a.width) / 2;
  a.strides[4][0] = a.strides[4][0] / (a.extents[1] * a.width) * a.out_row;
  uint16_t *const out = static_cast<uint16_t *>(outputs[0].data);
  return run(ctx, a, Part<uint16_t>{from[0], from[1], from[2], a.added, out, a.rows}, workspace);
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(bf16_attention,
                  TY_KERNEL((attention_kernel<ty_attention_attrs, run_plain>), "attention_bf16",
                            "whole"),
                  TY_KERNEL((attention_kernel<ty_attention_heads_attrs, run_plain>),
                            "attention_heads_bf16", "whole"),
                  TY_KERNEL(heads_of_pairs, "attention_heads_bf16", "whole_kept"))

// Instances of the tile of pairs for every height, so that tails run at full width.
#include "bf16_finish.hpp"

namespace TY_ISA {
namespace {

TY_INLINE vf multiply(vf sum, int32_t pair, __m512i weights) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)weights);
}

TY_INLINE int32_t load_pair(const char *from) {
  int32_t pair;
  __builtin_memcpy(&pair, from, sizeof pair);
  return pair;
}

// Values from the first result to that of a row, in the first vector.
template <int KIND>
TY_INLINE int64_t place(const PairTile *t, int row, int per_half) {
  if (KIND == PAIR_MATRIX || KIND == PAIR_ROWS) return row * t->y_row;
  return (row < per_half ? 0 : t->y_row) + row % per_half * 16;
}

// Activations that are no bounds, from sums in memory: rows x vectors x 16.
template <int KIND>
__attribute__((noinline)) void finish_smooth(const PairTile *t, const float *sums, int rows,
                                             int per_half, int vectors) {
  const GeluTable table = gelu_table();
  for (int v = 0; v < vectors; ++v)
    for (int i = 0; i < rows; ++i) {
      const int64_t at = place<KIND>(t, i, per_half) + v * t->y_next;
      store_smooth<KIND>(t, vload(sums + (i * vectors + v) * VF), at, v, table);
    }
}

enum { LONG = 128 };  // pairs from which on results are fetched ahead; blocks do not gain by it

// Asks for the rows that the results will be written to, and those that are added to them.
template <int KIND, int ROWS>
TY_INLINE void fetch_rows(const PairTile *t) {
  enum { LINES = KIND == PAIR_ROWS ? 1 : 2, VALUE = KIND == PAIR_ROWS ? 2 : 4 };
  const char *y = static_cast<const char *>(t->y);
  const char *more = static_cast<const char *>(t->residual);
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i)
    for (int line = 0; line < LINES; ++line) {
      const int64_t at = i * t->y_row * VALUE + line * 64;
      __builtin_prefetch(y + at, 1);
      if (more) __builtin_prefetch(more + at);
    }
}

#define TY_ALWAYS __attribute__((always_inline))

template <int KIND, int ROWS, int VECTORS, int PER_HALF, typename Finish>
TY_INLINE void store_all(const PairTile *t, vf (&c)[ROWS][VECTORS], const Finish &function) {
#pragma GCC unroll 2
  for (int v = 0; v < VECTORS; ++v)
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
      finish<KIND>(t, c[i][v], place<KIND>(t, i, PER_HALF) + v * t->y_next, v, function);
}

// Makes results of the sums of a tile.
template <int KIND, int ROWS, int VECTORS, int PER_HALF>
TY_INLINE void finish_sums(const PairTile *t, vf (&c)[ROWS][VECTORS]) {
  if (t->epilogue.activation != ACT_CLIP) {
    alignas(64) float sums[ROWS * VECTORS * VF];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) vstore(sums + (i * VECTORS + v) * VF, c[i][v]);
    finish_smooth<KIND>(t, sums, ROWS, PER_HALF, VECTORS);
    return;
  }
  // Bounds that bound nothing would take 1 % of a product of 384 terms.
  if (t->epilogue.upper == __builtin_inff()) {
    if (t->epilogue.lower == -__builtin_inff())
      store_all<KIND, ROWS, VECTORS, PER_HALF>(t, c, [](vf x) TY_ALWAYS { return x; });
    else
      store_all<KIND, ROWS, VECTORS, PER_HALF>(
          t, c, [&](vf x) TY_ALWAYS { return vmax_fast(vset1(t->epilogue.lower), x); });
    return;
  }
  store_all<KIND, ROWS, VECTORS, PER_HALF>(t, c, [&](vf x) TY_ALWAYS {
    return vmin_fast(vset1(t->epilogue.upper), vmax_fast(vset1(t->epilogue.lower), x));
  });
}

template <int KIND, int HALVES, int ROWS, int VECTORS>
void run_tile(const PairTile *t) {
  constexpr bool BLOCKS = KIND == PAIR_BLOCKS || KIND == PAIR_LANES;
  constexpr bool IN_ROWS = KIND == PAIR_MATRIX || KIND == PAIR_ROWS;
  enum { PER_HALF = ROWS / HALVES, BASES = BLOCKS ? HALVES : (ROWS + 2) / 3 };
  vf c[ROWS][VECTORS];
  const int64_t a_row = t->a_row, b_step = t->b_step, b_next = t->b_next;
#pragma GCC unroll 2
  for (int v = 0; v < VECTORS; ++v) {
    const vf bias = t->bias ? vload_tail(t->bias + v * VF, t->valid[v]) : vzero();
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) c[i][v] = bias;
  }
  if (IN_ROWS && t->segments->count >= LONG) fetch_rows<KIND, ROWS>(t);
  // Without anything to fetch, the same line is asked for again and again.
  const char *ahead = t->ahead ? t->ahead : reinterpret_cast<const char *>(t->b);
  const int64_t stride = t->ahead ? t->ahead_step : 0;
  const TileSegment *segment = t->segments, *end = segment + t->n_segments;
  for (; segment != end; ++segment) {
    const char *a[BASES];
    if (BLOCKS) {
      a[0] = t->a + segment->a;
      if (HALVES == 2) a[1] = a[0] + a_row;
    } else {
#pragma GCC unroll 5
      for (int i = 0; i < BASES; ++i) a[i] = t->a + segment->a + 3 * i * a_row;
    }
    const float *b = t->b + segment->b;
    const int64_t count = 4 * segment->count;
    for (int64_t k = 0; k < count; k += 4) {
      __m512i w[VECTORS];
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) w[v] = _mm512_loadu_si512(b + v * b_next);
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; ++i) {
        const int32_t pair = load_pair(BLOCKS ? a[i / PER_HALF] + k + i % PER_HALF * 32
                                              : a[i / 3] + k + i % 3 * a_row);
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v) c[i][v] = multiply(c[i][v], pair, w[v]);
      }
      _mm_prefetch(ahead, _MM_HINT_T1);
      ahead += stride;
      b += b_step;
    }
  }
  finish_sums<KIND, ROWS, VECTORS, PER_HALF>(t, c);
}

#define PAIR(kind, halves, rows) {run_tile<kind, halves, rows, 1>, run_tile<kind, halves, rows, 2>}
#define ALL(kind)                                                                                \
  PAIR(kind, 1, 1), PAIR(kind, 1, 2), PAIR(kind, 1, 3), PAIR(kind, 1, 4), PAIR(kind, 1, 5),      \
      PAIR(kind, 1, 6), PAIR(kind, 1, 7), PAIR(kind, 1, 8), PAIR(kind, 1, 9), PAIR(kind, 1, 10), \
      PAIR(kind, 1, 11), PAIR(kind, 1, 12), PAIR(kind, 1, 13), PAIR(kind, 1, 14)

const PairRun whole[5][TILE_ROWS][2] = {
    {ALL(PAIR_BLOCKS)}, {ALL(PAIR_LANES)}, {ALL(PAIR_IMAGE)}, {ALL(PAIR_MATRIX)}, {ALL(PAIR_ROWS)}};
const PairRun halved[TILE_ROWS / 2][2] = {PAIR(PAIR_BLOCKS, 2, 2),  PAIR(PAIR_BLOCKS, 2, 4),
                                          PAIR(PAIR_BLOCKS, 2, 6),  PAIR(PAIR_BLOCKS, 2, 8),
                                          PAIR(PAIR_BLOCKS, 2, 10), PAIR(PAIR_BLOCKS, 2, 12),
                                          PAIR(PAIR_BLOCKS, 2, 14)};

}  // namespace

PairRun pair_tile_of(PairKind kind, int halves, int rows, int vectors) {
  if (halves == 2) return halved[rows / 2 - 1][vectors - 1];
  return whole[kind][rows - 1][vectors - 1];
}

}  // namespace TY_ISA

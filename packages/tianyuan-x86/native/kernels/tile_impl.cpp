// Instances of the tile for every height, so that tails run at full width.
#include "tile.hpp"

namespace TY_ISA {
namespace {

template <int KIND>
TY_INLINE const float *row_of(const float *a, int row, int per_half, int64_t a_row) {
  if (KIND == TILE_STRIDED) return a + row * a_row;
  const int within = row % per_half;
  const float *half = row < per_half ? a : a + a_row;
  return half + within * (KIND == TILE_BLOCK ? (int)VF : 1);
}

template <int HALVES, int ROWS, int VECTORS>
TY_INLINE void finish_tile(vf (&c)[ROWS][VECTORS], const TileOut &out) {
  const vf lower = vset1(out.lower), upper = vset1(out.upper);
#pragma GCC unroll 4
  for (int v = 0; v < VECTORS; ++v) {
    const vf bias = vload(out.bias + v * VF);
    if (out.residual) {
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; ++i) {
        const float *from = row_of<TILE_BLOCK>(out.residual, i, ROWS / HALVES, out.half);
        c[i][v] = vadd(vadd(c[i][v], bias), vload(from + v * out.next));
      }
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; ++i) c[i][v] = vadd(c[i][v], bias);
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      const int64_t half = i < ROWS / HALVES ? 0 : out.half;
      vstore(out.y + half + i % (ROWS / HALVES) * VF + v * out.next,
             vmin_fast(upper, vmax_fast(lower, c[i][v])));
    }
  }
}

template <int KIND, int HALVES, int ROWS, int VECTORS>
void run_tile(const TileArgs *t) {
  vf c[ROWS][VECTORS];
  const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step, b_next = t->b_next;
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
      c[i][v] = t->accumulate ? vload(t->c + (i * VECTORS + v) * VF) : vzero();
  const TileSegment *segment = t->segments, *end = segment + t->n_segments;
  for (; segment != end; ++segment) {
    const float *a = t->a + segment->a, *b = t->b + segment->b;
    for (int64_t k = segment->count; k > 0; --k) {
      vf w[VECTORS];
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) w[v] = vload(b + v * b_next);
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; ++i) {
        const vf x = vset1(*row_of<KIND>(a, i, ROWS / HALVES, a_row));
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) c[i][v] = vfma(x, w[v], c[i][v]);
      }
      a += a_step;
      b += b_step;
    }
  }
  if (KIND != TILE_STRIDED && t->out) {
    finish_tile<HALVES, ROWS, VECTORS>(c, *t->out);
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) vstore(t->c + (i * VECTORS + v) * VF, c[i][v]);
}

#define TILE_PAIR(kind, halves, rows) \
  {run_tile<kind, halves, rows, 1>, run_tile<kind, halves, rows, 2>}
#define TILE_SIX(kind)                                                                        \
  TILE_PAIR(kind, 1, 1), TILE_PAIR(kind, 1, 2), TILE_PAIR(kind, 1, 3), TILE_PAIR(kind, 1, 4), \
      TILE_PAIR(kind, 1, 5), TILE_PAIR(kind, 1, 6)
#define TILE_HALVES_SIX(kind) TILE_PAIR(kind, 2, 2), TILE_PAIR(kind, 2, 4), TILE_PAIR(kind, 2, 6)
#if TY_VF == 16
#define TILE_ALL(kind)                                                                 \
  TILE_SIX(kind), TILE_PAIR(kind, 1, 7), TILE_PAIR(kind, 1, 8), TILE_PAIR(kind, 1, 9), \
      TILE_PAIR(kind, 1, 10), TILE_PAIR(kind, 1, 11), TILE_PAIR(kind, 1, 12),          \
      TILE_PAIR(kind, 1, 13), TILE_PAIR(kind, 1, 14)
#define TILE_HALVES(kind)                                                                       \
  TILE_HALVES_SIX(kind), TILE_PAIR(kind, 2, 8), TILE_PAIR(kind, 2, 10), TILE_PAIR(kind, 2, 12), \
      TILE_PAIR(kind, 2, 14)
#else
#define TILE_ALL(kind) TILE_SIX(kind)
#define TILE_HALVES(kind) TILE_HALVES_SIX(kind)
#endif

const TileRun whole[3][TILE_ROWS][2] = {
    {TILE_ALL(TILE_UNIT)}, {TILE_ALL(TILE_BLOCK)}, {TILE_ALL(TILE_STRIDED)}};
const TileRun halved[2][TILE_ROWS / 2][2] = {{TILE_HALVES(TILE_UNIT)}, {TILE_HALVES(TILE_BLOCK)}};

}  // namespace

TileRun tile_of(TileKind kind, int halves, int rows, int vectors) {
  if (halves == 2) return halved[kind][rows / 2 - 1][vectors - 1];
  return whole[kind][rows - 1][vectors - 1];
}

}  // namespace TY_ISA

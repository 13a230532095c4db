// The product of pairs by vectors: a tile of rows by a panel at a time, single rows apart.
#include "bf16_matmul.hpp"

namespace TY_ISA {
namespace {

// One row by one panel: the sums of four pairs run side by side.
void multiply_row(const PairTile &t, int64_t pairs, bool keeps) {
  enum { CHAINS = 4 };
  vf sums[CHAINS][2];
  for (int i = 0; i < CHAINS; ++i) sums[i][0] = sums[i][1] = vzero();
  const float *b = t.b;
  int64_t k = 0;
  const auto pair_at = [&](int64_t at) {
    int32_t pair;
    __builtin_memcpy(&pair, t.a + 4 * at, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
  };
  for (; k + CHAINS <= pairs; k += CHAINS) {
#pragma GCC unroll 4
    for (int i = 0; i < CHAINS; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v)
        sums[i][v] = _mm512_dpbf16_ps(sums[i][v], pair_at(k + i),
                                      (__m512bh)vload(b + (k + i) * PAIR_PANEL + v * VF));
  }
  for (; k < pairs; ++k)
    for (int v = 0; v < 2; ++v)
      sums[0][v] =
          _mm512_dpbf16_ps(sums[0][v], pair_at(k), (__m512bh)vload(b + k * PAIR_PANEL + v * VF));
  for (int v = 0; v < 2; ++v) {
    vf sum = vadd(vadd(sums[0][v], sums[1][v]), vadd(sums[2][v], sums[3][v]));
    if (t.bias) sum = vadd(sum, vload_tail(t.bias + v * VF, t.valid[v]));
    if (keeps) {
      vstore_element(static_cast<element *>(t.y) + v * VF, activate(sum, t.epilogue));
      continue;
    }
    if (t.residual)
      sum = vadd(sum, vload_tail(static_cast<const float *>(t.residual) + v * VF, t.valid[v]));
    vstore_tail(static_cast<float *>(t.y) + v * VF, activate(sum, t.epilogue), t.valid[v]);
  }
}

}  // namespace

void pair_panel_run(const PairProduct &p, const char *a, int64_t panel, int64_t begin,
                    int64_t end) {
  const TileSegment segment = {0, 0, ceil_div(p.k, 2)};
  const int64_t first = panel * PAIR_PANEL;
  PairTile tile = panel_tile(p, panel);
  tile.segments = &segment;
  tile.n_segments = 1;
  const int vectors = p.n - first > VF ? 2 : 1;
  const PairKind kind = p.keeps ? PAIR_ROWS : PAIR_MATRIX;
  const int64_t tiles = ceil_div(end - begin, TILE_ROWS);
  // All tiles share the next panel evenly: a burst of lines from memory would hold up their own.
  const int64_t panel_bytes = 4 * PAIR_PANEL * segment.count;
  const char *const next = reinterpret_cast<const char *>(tile.b) + panel_bytes;
  tile.ahead_step = ceil_div(4 * PAIR_PANEL, tiles);
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t from = begin + t * (end - begin) / tiles;
    const int64_t to = begin + (t + 1) * (end - begin) / tiles;
    tile.a = a + from * tile.a_row;
    if (first + PAIR_PANEL < p.n) tile.ahead = next + t * tile.ahead_step * segment.count;
    point_to(p, from, panel, &tile);
    if (to - from == 1)
      multiply_row(tile, segment.count, p.keeps);
    else
      pair_tile_of(kind, 1, static_cast<int>(to - from), vectors)(&tile);
  }
}

}  // namespace TY_ISA

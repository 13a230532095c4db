// matmul and matmul_fused whose right operand is packed in pairs: float32 in and out, multiplied in
// bfloat16.
//
// The right operand lies as [panel of 32 columns][ceil(k / 2)][32 columns] words; the left one is
// rounded into rows of pairs first.
#include "bf16.hpp"

namespace TY_ISA {
namespace {

enum { PANEL = 2 * VF, ROW_CHUNK = 9 * TILE_ROWS };

TY_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
TY_INLINE int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

struct Product {
  int64_t rows, n, k;
  const float *a, *b, *bias, *residual;
  float *c;
  Epilogue epilogue;
};

Product product_of(const ty_tensor *inputs, const ty_tensor &out) {
  Product p = {};
  const ty_tensor &a = inputs[0];
  p.k = a.shape[a.ndim - 1];
  p.n = out.shape[out.ndim - 1];
  p.rows = ty_count(out) / (p.n > 0 ? p.n : 1);
  p.a = static_cast<const float *>(a.data);
  p.b = static_cast<const float *>(inputs[1].data);
  p.c = static_cast<float *>(out.data);
  p.epilogue = as_clip({ACT_IDENTITY, 0.0f, 0.0f});
  return p;
}

// Bytes of a row of pairs; more than a power of two, so that neighbours do not meet in a cache's
// sets.
int64_t row_bytes(int64_t k) { return ceil_div(2 * k, 64) * 64 + 64; }

void round_row(char *to, const float *from, int64_t k) {
  int64_t i = 0;
  uint16_t *out = reinterpret_cast<uint16_t *>(to);
  for (; i + VF <= k; i += VF) vstore_pairs(out + i, vload(from + i));
  if (i < k) vstore_pairs(out + i, vload_tail(from + i, vtail_of(k - i)));
}

// One row by one panel: the sums of four pairs run side by side.
void multiply_row(const PairTile &t, int64_t pairs) {
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
                                      (__m512bh)vload(b + (k + i) * PANEL + v * VF));
  }
  for (; k < pairs; ++k)
    for (int v = 0; v < 2; ++v)
      sums[0][v] =
          _mm512_dpbf16_ps(sums[0][v], pair_at(k), (__m512bh)vload(b + k * PANEL + v * VF));
  for (int v = 0; v < 2; ++v) {
    vf sum = vadd(vadd(sums[0][v], sums[1][v]), vadd(sums[2][v], sums[3][v]));
    if (t.bias) sum = vadd(sum, vload_tail(t.bias + v * VF, t.valid[v]));
    if (t.residual)
      sum = vadd(sum, vload_tail(static_cast<const float *>(t.residual) + v * VF, t.valid[v]));
    vstore_tail(static_cast<float *>(t.y) + v * VF, activate(sum, t.epilogue), t.valid[v]);
  }
}

// Rows [begin, end) by one panel of columns.
void run_panel(const Product &p, const char *a, const TileSegment &segment, int64_t panel,
               int64_t begin, int64_t end) {
  const int64_t first = panel * PANEL;
  PairTile tile = {};
  tile.segments = &segment;
  tile.n_segments = 1;
  tile.a_row = row_bytes(p.k);
  tile.b = p.b + panel * segment.count * PANEL;
  tile.b_step = PANEL;
  tile.b_next = VF;
  tile.bias = p.bias ? p.bias + first : nullptr;
  tile.y_row = p.n;
  tile.y_next = VF;
  tile.epilogue = p.epilogue;
  const int vectors = p.n - first > VF ? 2 : 1;
  for (int v = 0; v < 2; ++v)
    tile.valid[v] = vtail_of(p.n - first > v * VF ? p.n - first - v * VF : 0);
  const int64_t tiles = ceil_div(end - begin, TILE_ROWS);
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t from = begin + t * (end - begin) / tiles;
    const int64_t to = begin + (t + 1) * (end - begin) / tiles;
    tile.a = a + from * tile.a_row;
    // While the first two tiles run, the next panel comes nearer, half a tile.
    tile.ahead = t < 2 && first + PANEL < p.n
                     ? reinterpret_cast<const char *>(tile.b) + (2 + t) * 64 * segment.count
                     : nullptr;
    tile.y = p.c + from * p.n + first;
    tile.residual = p.residual ? p.residual + from * p.n + first : nullptr;
    if (to - from == 1)
      multiply_row(tile, segment.count);
    else
      pair_tile_of(PAIR_MATRIX, 1, static_cast<int>(to - from), vectors)(&tile);
  }
}

int run(const ty_ctx *ctx, const Product &p, void *workspace) {
  if (p.rows == 0 || p.n == 0) return 0;
  char *a = static_cast<char *>(workspace);
  const int64_t stride = row_bytes(p.k);
  ty_parallel(ctx, p.rows, 1 + 32768 / (p.k + 1), [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t row = begin; row < end; ++row) round_row(a + row * stride, p.a + row * p.k, p.k);
  });
  const TileSegment segment = {0, 0, ceil_div(p.k, 2)};
  const int64_t panels = ceil_div(p.n, PANEL), chunks = ceil_div(p.rows, ROW_CHUNK);
  const int64_t work = lesser(p.rows, ROW_CHUNK) * PANEL * (p.k + 1);
  ty_parallel(ctx, panels * chunks, 1 + 200000 / work, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t chunk = at / panels;
      run_panel(p, a, segment, at % panels, chunk * p.rows / chunks, (chunk + 1) * p.rows / chunks);
    }
  });
  return 0;
}

int matmul(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
           void *workspace) {
  return run(ctx, product_of(inputs, outputs[0]), workspace);
}

int matmul_fused(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                 const ty_attrs *attrs, void *workspace) {
  const auto *a = reinterpret_cast<const ty_matmul_fused_attrs *>(attrs);
  Product p = product_of(inputs, outputs[0]);
  int next = 2;
  if (a->has_bias) p.bias = static_cast<const float *>(inputs[next++].data);
  if (a->has_residual) p.residual = static_cast<const float *>(inputs[next].data);
  const char *name = TY_STRING(a, a->activation);
  p.epilogue =
      as_clip({activation_of(name), static_cast<float>(a->lower), static_cast<float>(a->upper)});
  if (p.epilogue.activation == ACT_UNKNOWN)
    return ty_fail(ctx, "matmul_fused: unknown activation, got '%s'", name);
  return run(ctx, p, workspace);
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(bf16_matmul, TY_KERNEL(matmul, "matmul_bf16", "packed"),
                  TY_KERNEL(matmul, "matmul_bf16", "packed_transposed"),
                  TY_KERNEL(matmul_fused, "matmul_fused_bf16", "packed"),
                  TY_KERNEL(matmul_fused, "matmul_fused_bf16", "packed_transposed"))

// matmul and matmul_fused whose right operand is packed in pairs: float32 in and out, multiplied in
// bfloat16.
//
// The right operand lies as [panel of 32 columns][ceil(k / 2)][32 columns] words; the left one is
// rounded into rows of pairs first.
#include "bf16_matmul.hpp"

namespace TY_ISA {
namespace {

enum { ROW_CHUNK = 9 * TILE_ROWS };

PairProduct product_of(const ty_tensor *inputs, const ty_tensor &out) {
  PairProduct p = {};
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

// Zeros follow up to a whole step.
void round_row(char *to, const float *from, int64_t k) {
  int64_t i = 0;
  uint16_t *out = reinterpret_cast<uint16_t *>(to);
  for (; i + VF <= k; i += VF) vstore_element(out + i, vload(from + i));
  for (; i % PAIR_STEP != 0 || i < k; i += VF)
    vstore_element(out + i, i < k ? vload_tail(from + i, vtail_of(k - i)) : vzero());
}

int run(const ty_ctx *ctx, const PairProduct &p, void *workspace) {
  if (p.rows == 0 || p.n == 0) return 0;
  char *a = static_cast<char *>(workspace);
  const int64_t stride = pair_row_bytes(p.k);
  ty_parallel(ctx, p.rows, 1 + 32768 / (p.k + 1), [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t row = begin; row < end; ++row) round_row(a + row * stride, p.a + row * p.k, p.k);
  });
  const int64_t panels = ceil_div(p.n, PAIR_PANEL), chunks = ceil_div(p.rows, ROW_CHUNK);
  const int64_t work = lesser(p.rows, ROW_CHUNK) * PAIR_PANEL * (p.k + 1);
  ty_parallel(ctx, panels * chunks, 1 + 200000 / work, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t chunk = at / panels;
      pair_panel_run(p, a, at % panels, chunk * p.rows / chunks, (chunk + 1) * p.rows / chunks);
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
  PairProduct p = product_of(inputs, outputs[0]);
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

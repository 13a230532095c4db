// matmul and matmul_fused whose right operand is packed in pairs, multiplied in bfloat16: float32
// in and out, or rows of pairs that stay between products and attention.
//
// The right operand lies as [panel of 32 columns][ceil(k / 2)][32 columns] words; the left one is
// rounded into rows of pairs first where it is float32.
#include "bf16_matmul.hpp"

namespace TY_ISA {
namespace {

enum { ROW_CHUNK = 9 * TILE_ROWS };

// Which of the left operand and the result are rows of pairs, as the kernel before left them or as
// the one behind reads them. Their extents are whole steps then.
enum Kept { NONE = 0, KEPT_LEFT = 1, KEPT_RESULT = 2 };

PairProduct product_of(const ty_tensor *inputs, const ty_tensor &out, int kept) {
  PairProduct p = {};
  const ty_tensor &a = inputs[0];
  p.k = a.shape[a.ndim - 1];
  p.n = out.shape[out.ndim - 1];
  p.rows = ty_count(out) / (p.n > 0 ? p.n : 1);
  p.b = static_cast<const float *>(inputs[1].data);
  p.c = out.data;
  p.keeps = kept & KEPT_RESULT;
  p.c_row = p.keeps ? pair_row_bytes(p.n) / 2 : p.n;
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

int run(const ty_ctx *ctx, const PairProduct &p, const ty_tensor &left, int kept, void *workspace) {
  if (p.rows == 0 || p.n == 0) return 0;
  const int64_t stride = pair_row_bytes(p.k);
  const char *a = static_cast<const char *>(left.data);
  if (!(kept & KEPT_LEFT)) {
    char *const to = static_cast<char *>(workspace);
    const float *from = static_cast<const float *>(left.data);
    ty_parallel(ctx, p.rows, 1 + 32768 / (p.k + 1), [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t row = begin; row < end; ++row)
        round_row(to + row * stride, from + row * p.k, p.k);
    });
    a = to;
  }
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
  return run(ctx, product_of(inputs, outputs[0], NONE), inputs[0], NONE, workspace);
}

template <int KEPT>
int matmul_fused(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                 const ty_attrs *attrs, void *workspace) {
  const auto *a = reinterpret_cast<const ty_matmul_fused_attrs *>(attrs);
  PairProduct p = product_of(inputs, outputs[0], KEPT);
  int next = 2;
  if (a->has_bias) p.bias = static_cast<const float *>(inputs[next++].data);
  if (a->has_residual) p.residual = static_cast<const float *>(inputs[next].data);
  const char *name = TY_STRING(a, a->activation);
  p.epilogue =
      as_clip({activation_of(name), static_cast<float>(a->lower), static_cast<float>(a->upper)});
  if (p.epilogue.activation == ACT_UNKNOWN)
    return ty_fail(ctx, "matmul_fused: unknown activation, got '%s'", name);
  return run(ctx, p, inputs[0], KEPT, workspace);
}

}  // namespace
}  // namespace TY_ISA

#define FUSED(kept, suffix)                                            \
  TY_KERNEL(matmul_fused<kept>, "matmul_fused_bf16", "packed" suffix), \
      TY_KERNEL(matmul_fused<kept>, "matmul_fused_bf16", "packed_transposed" suffix)

TY_EXPORT_KERNELS(bf16_matmul, TY_KERNEL(matmul, "matmul_bf16", "packed"),
                  TY_KERNEL(matmul, "matmul_bf16", "packed_transposed"), FUSED(NONE, ""),
                  FUSED(KEPT_LEFT, "_from_kept"), FUSED(KEPT_RESULT, "_to_kept"),
                  FUSED(KEPT_LEFT | KEPT_RESULT, "_kept"))

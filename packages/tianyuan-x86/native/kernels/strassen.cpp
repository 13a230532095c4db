// matmul and matmul_fused in float32 by one level of Strassen's method: rows or columns are cut
// into pieces for the threads.
#include "strassen.hpp"

namespace TY_ISA {
namespace {

// Into how many parts the rows of a quarter are cut for so many threads: as long as each has two
// tiles. A thread then finds rows that it wrote in its own cache, and adds up no rows of others.
int64_t row_parts_of(int64_t rows, int64_t threads) {
  int64_t parts = 1;
  while (threads % (2 * parts) == 0 && rows >= 4 * parts * TILE_ROWS) parts *= 2;
  return parts;
}

int run(const ty_ctx *ctx, Strassen s, const ty_tensor &a, const ty_tensor &out, void *workspace) {
  s.m = out.shape[out.ndim - 2];
  s.n = out.shape[out.ndim - 1];
  s.k = a.shape[a.ndim - 1];
  s.a = static_cast<const float *>(a.data);
  s.c = static_cast<float *>(out.data);
  int64_t batch = 1;
  for (int axis = 0; axis < out.ndim - 2; ++axis) batch *= out.shape[axis];
  if (batch * s.m * s.n == 0) return 0;
  const int64_t pairs = s.n / (2 * TILE_LANES);
  const int64_t chunks = ceil_div(s.m, STRASSEN_ROWS), items = batch * chunks;
  const int64_t wanted = ceil_div(ctx->threads, items);
  // Panels of a plain b are packed by whoever multiplies them.
  const int64_t row_parts = s.plain ? 1 : row_parts_of(s.m / chunks / 2, wanted);
  const int64_t column_parts = lesser(wanted / row_parts, pairs), parts = row_parts * column_parts;
  const int64_t per_slot = strassen_workspace(s.m, s.k, s.plain != nullptr);
  ty_parallel(ctx, items * parts, 1, [&](int64_t begin, int64_t end, int32_t slot) {
    float *const scratch = static_cast<float *>(workspace) + slot * per_slot;
    for (int64_t at = begin; at < end; ++at) {
      const int64_t chunk = at / parts % chunks, item = at / parts / chunks, part = at % parts;
      Strassen one = s;
      one.a += item * s.m * s.k;
      one.c += item * s.m * s.n;
      if (one.residual) one.residual += item * s.m * s.n;
      const int64_t i0 = s.m / 2 * chunk / chunks * 2, i1 = s.m / 2 * (chunk + 1) / chunks * 2;
      const int64_t lower = (i1 - i0) / 2, column = part % column_parts, row = part / column_parts;
      const int64_t r0 = lower * row / row_parts, r1 = lower * (row + 1) / row_parts;
      multiply_strassen(one,
                        {i0 + r0, r1 - r0, i0, lower, pairs * column / column_parts,
                         pairs * (column + 1) / column_parts},
                        scratch);
    }
  });
  return 0;
}

// Says where b lies, of whose values nothing is known beforehand if it is PLAIN.
template <bool PLAIN>
void set_right(Strassen *s, const ty_tensor &b, bool transposed) {
  const float *const values = static_cast<const float *>(b.data);
  if (!PLAIN) {
    s->b = values;
    return;
  }
  s->plain = values;
  s->b_step = transposed ? 1 : b.shape[1];
  s->b_column = transposed ? b.shape[1] : 1;
}

template <bool PLAIN>
int matmul(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
           void *workspace) {
  const ty_matmul_attrs *a = reinterpret_cast<const ty_matmul_attrs *>(attrs);
  Strassen s = {};
  set_right<PLAIN>(&s, inputs[1], a->transpose_b != 0);
  return run(ctx, s, inputs[0], outputs[0], workspace);
}

template <bool PLAIN>
int matmul_fused(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                 const ty_attrs *attrs, void *workspace) {
  const ty_matmul_fused_attrs *a = reinterpret_cast<const ty_matmul_fused_attrs *>(attrs);
  Strassen s = {};
  set_right<PLAIN>(&s, inputs[1], a->transpose_b != 0);
  int next = 2;
  if (a->has_bias) s.bias = static_cast<const float *>(inputs[next++].data);
  if (a->has_residual) s.residual = static_cast<const float *>(inputs[next].data);
  const char *name = TY_STRING(a, a->activation);
  s.epilogue = {activation_of(name), static_cast<float>(a->lower), static_cast<float>(a->upper)};
  if (s.epilogue.activation == ACT_UNKNOWN)
    return ty_fail(ctx, "matmul_fused: unknown activation, got '%s'", name);
  return run(ctx, s, inputs[0], outputs[0], workspace);
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(strassen, TY_KERNEL(matmul<false>, "matmul_f32", "strassen_winograd"),
                  TY_KERNEL(matmul<false>, "matmul_f32", "strassen_winograd_transposed"),
                  TY_KERNEL(matmul<true>, "matmul_f32", "strassen_winograd_plain"),
                  TY_KERNEL(matmul_fused<false>, "matmul_fused_f32", "strassen_winograd"),
                  TY_KERNEL(matmul_fused<false>, "matmul_fused_f32",
                            "strassen_winograd_transposed"),
                  TY_KERNEL(matmul_fused<true>, "matmul_fused_f32", "strassen_winograd_plain"))

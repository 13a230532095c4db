// relayout of a plain right operand to the panels that matmul.cpp reads.
#include "panels.hpp"

namespace TY_ISA {
namespace {

// A piece is some rows of one panel: pages that far apart rows lie in then serve all panels.
enum { ROWS = 4 * VF };

template <bool TRANSPOSED>
int pack(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *, void *) {
  const int64_t *s = inputs[0].shape, n = s[TRANSPOSED ? 0 : 1], k = s[TRANSPOSED ? 1 : 0];
  const int64_t panels = ceil_div(n, TILE_LANES), pieces = ceil_div(k, ROWS);
  const float *const b = static_cast<const float *>(inputs[0].data);
  float *const to = static_cast<float *>(outputs[0].data);
  ty_parallel(ctx, pieces * panels, 4, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t row = at / panels * ROWS, column = at % panels * TILE_LANES;
      const int64_t cols = lesser(TILE_LANES, n - column), depth = lesser(ROWS, k - row);
      float *const panel = to + column * k + row * TILE_LANES;
      if (TRANSPOSED)
        pack_b_columns(panel, b + column * k + row, k, cols, depth);
      else
        pack_b_rows(panel, b + row * n + column, n, cols, depth);
    }
  });
  return 0;
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(relayout_panels, TY_KERNEL(pack<false>, "relayout_f32", "pack_kn"),
                  TY_KERNEL(pack<true>, "relayout_f32", "pack_nk"))

// matmul and matmul_fused in float32: batches and parts of one product run in parallel.
#include "matmul.hpp"
#include "batch.hpp"
#include "dots.hpp"
#include "kernel.hpp"

namespace TY_ISA {
namespace {

struct Product {
  Gemm gemm;  // of batch item 0
  int64_t batch;
  int batch_dims;
  int64_t extents[TY_MAX_DIMS], a_stride[TY_MAX_DIMS], b_stride[TY_MAX_DIMS];
};

Product product_of(const ty_tensor *inputs, const ty_tensor &out, bool ta, bool tb, bool packed) {
  const ty_tensor &a = inputs[0], &b = inputs[1];
  Product p = {};
  const int64_t a_cols = a.shape[a.ndim - 1], b_cols = b.shape[b.ndim - 1];
  p.gemm.m = out.shape[out.ndim - 2];
  p.gemm.n = out.shape[out.ndim - 1];
  p.gemm.k = ta ? a.shape[a.ndim - 2] : a_cols;
  p.gemm.a = static_cast<const float *>(a.data);
  p.gemm.a_row = ta ? 1 : a_cols;
  p.gemm.a_step = ta ? a_cols : 1;
  p.gemm.b = static_cast<const float *>(b.data);
  if (packed) p.gemm.packed = p.gemm.b;
  p.gemm.b_step = tb ? 1 : b_cols;
  p.gemm.b_column = tb ? b_cols : 1;
  p.gemm.c = static_cast<float *>(out.data);
  p.gemm.c_row = p.gemm.n;
  p.batch_dims = out.ndim - 2;
  p.batch = 1;
  for (int axis = 0; axis < p.batch_dims; ++axis) p.batch *= p.extents[axis] = out.shape[axis];
  batch_strides(a, out, p.a_stride);
  batch_strides(b, out, p.b_stride);
  // Rows of all batch items on top of each other make one larger product where b is shared.
  bool shared = p.batch > 1 && !ta;
  for (int axis = 0; axis < p.batch_dims; ++axis)
    if (p.extents[axis] > 1 && (p.b_stride[axis] != 0 || p.a_stride[axis] == 0)) shared = false;
  if (shared) {
    p.gemm.m *= p.batch;
    p.batch = 1;
    p.batch_dims = 0;
  }
  return p;
}

Gemm item_of(const Product &p, int64_t item) {
  Gemm g = p.gemm;
  const int64_t at = item * g.m * g.n;
  g.c += at;
  if (g.residual) g.residual += at;
  for (int axis = p.batch_dims - 1; axis >= 0; --axis) {
    const int64_t index = item % p.extents[axis];
    item /= p.extents[axis];
    g.a += index * p.a_stride[axis];
    g.b += index * p.b_stride[axis];
  }
  return g;
}

Gemm part_of(const Gemm &whole, int64_t i0, int64_t i1, int64_t j0, int64_t j1, Descent *update) {
  Gemm g = whole;
  g.m = i1 - i0;
  g.n = j1 - j0;
  g.a += i0 * g.a_row;
  g.b += j0 * g.b_column;
  if (g.packed) g.packed += j0 * g.k;
  g.c += i0 * g.c_row + j0;
  if (g.residual) g.residual += i0 * g.c_row + j0;
  if (g.bias) g.bias += j0;
  if (g.update) {
    const int64_t at = i0 * g.c_row + j0;
    *update = *g.update;
    update->param += at;
    if (update->velocity) {
      update->velocity += at;
      update->new_velocity += at;
    }
    g.update = update;
  }
  return g;
}

// y[j] = sum of x[k] times a contiguous column: lanes run over eight vectors of columns.
void add_rows(const float *x, const float *matrix, int64_t row, int64_t k, int64_t cols, float *y) {
  for (int64_t j = 0; j < cols; j += 8 * VF) {
    vf s[8];
    const int64_t some = cols - j;
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) s[v] = vzero();
    if (some >= 8 * VF) {
      for (int64_t i = 0; i < k; ++i) {
        const vf w = vset1(x[i]);
#pragma GCC unroll 8
        for (int v = 0; v < 8; ++v) s[v] = vfma(w, vload(matrix + i * row + j + v * VF), s[v]);
      }
      for (int v = 0; v < 8; ++v) vstore(y + j + v * VF, s[v]);
      continue;
    }
    for (int64_t at = 0; at < some; at += VF) {
      const vtail tail = vtail_of(some - at);
      vf sum = vzero();
      for (int64_t i = 0; i < k; ++i)
        sum = vfma(vset1(x[i]), vload_tail(matrix + i * row + j + at, tail), sum);
      vstore_tail(y + j + at, sum, tail);
    }
  }
}

// Bias, residual and activation over a contiguous run of results; `bias` has a value for each, or
// one for all.
void finish_run(const Gemm &g, float *c, const float *residual, int64_t count, bool one_bias) {
  if (!g.bias && !residual && g.epilogue.activation == ACT_IDENTITY) return;
  for (int64_t i = 0; i < count; i += VF) {
    const vtail tail = vtail_of(count - i);
    vf x = vload_tail(c + i, tail);
    if (g.bias) x = vadd(x, one_bias ? vset1(g.bias[0]) : vload_tail(g.bias + i, tail));
    if (residual) x = vadd(x, vload_tail(residual + i, tail));
    vstore_tail(c + i, activate(x, g.epilogue), tail);
  }
}

enum { THIN = TY_VF == 16 ? 12 : 8 };

// Few rows or columns: whether dot products along k, or sums of rows of b, need no packing.
bool is_thin(const Gemm &g) {
  if (g.m == 1 || g.n == 1) return true;
  return (g.m <= THIN || g.n <= THIN) && g.a_step == 1 && g.b_step == 1 && g.k >= 4 * VF;
}

// One row by packed columns.
void multiply_packed_row(const Gemm &g) {
  multiply_row(g);
  finish_run(g, g.c, g.residual, g.n, false);
}

// A thin product. A vector's stride is 1 whether or not the operand counts as transposed, and a
// column of c is contiguous where n is 1.
void multiply_thin(const Gemm &g) {
  if (g.n == 1) {
    if (g.a_row == 1)
      add_rows(g.b, g.a, g.a_step, g.k, g.m, g.c);
    else
      multiply_dots(g.b, 0, 1, g.a, g.a_row, g.m, g.k, g.c, 0);
    finish_run(g, g.c, g.residual, g.m, true);
    return;
  }
  if (g.m == 1 && g.b_column == 1)
    add_rows(g.a, g.b, g.b_step, g.k, g.n, g.c);
  else
    multiply_dots(g.a, g.a_row, g.m, g.b, g.b_column, g.n, g.k, g.c, g.c_row);
  for (int64_t i = 0; i < g.m; ++i)
    finish_run(g, g.c + i * g.c_row, g.residual ? g.residual + i * g.c_row : nullptr, g.n, false);
}

struct Parts {
  int64_t rows, cols, row_step, col_step;
};

// Cuts a product so that every thread gets some part, along multiples of a tile.
Parts parts_of(const Gemm &g, int64_t wanted) {
  Parts parts = {1, 1, g.m, g.n};
  const double work =
      2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  if (wanted <= 1 || work < 4e5) return parts;
  const int64_t row_tiles = tiles_of(g.m);
  const int64_t col_tiles = ceil_div(g.n, TILE_LANES);
  int64_t rows = 1, cols = 1;
  while (rows * cols < wanted) {
    const bool more_rows = g.m / rows >= g.n / cols;
    if (more_rows && rows * 2 <= row_tiles)
      rows *= 2;
    else if (cols * 2 <= col_tiles)
      cols *= 2;
    else if (rows * 2 <= row_tiles)
      rows *= 2;
    else
      break;
  }
  parts.row_step = ceil_div(row_tiles, rows) * TILE_ROWS;
  parts.col_step = ceil_div(col_tiles, cols) * TILE_LANES;
  parts.rows = ceil_div(g.m, parts.row_step);
  parts.cols = ceil_div(g.n, parts.col_step);
  return parts;
}

int run_product(const ty_ctx *ctx, const Product &p, void *workspace) {
  const Gemm &g = p.gemm;
  const bool thin = !g.packed && !g.update && is_thin(g), row = g.packed && g.m == 1;
  if (p.batch == 0 || g.m == 0 || g.n == 0) return 0;
  const int64_t wanted = p.batch >= 2 * ctx->threads ? 1 : ctx->threads;
  const Parts parts = parts_of(g, wanted);
  const int64_t per_item = parts.rows * parts.cols;
  const int64_t per_slot =
      g.update ? descent_workspace(g.m, g.n, g.k) : gemm_workspace(g.m, g.n, g.k);
  const double work = 2.0 * static_cast<double>(parts.row_step) *
                      static_cast<double>(parts.col_step) * static_cast<double>(g.k + 1);
  const int64_t grain = work > 2e5 ? 1 : static_cast<int64_t>(2e5 / work) + 1;
  ty_parallel(ctx, p.batch * per_item, grain, [&](int64_t begin, int64_t end, int32_t slot) {
    for (int64_t at = begin; at < end; ++at) {
      const Gemm item = item_of(p, at / per_item);
      const int64_t i = at % per_item / parts.cols * parts.row_step;
      const int64_t j = at % parts.cols * parts.col_step;
      const int64_t i1 = lesser(i + parts.row_step, g.m);
      const int64_t j1 = lesser(j + parts.col_step, g.n);
      Descent update;
      const Gemm part = part_of(item, i, i1, j, j1, &update);
      if (thin)
        multiply_thin(part);
      else if (row)
        multiply_packed_row(part);
      else
        gemm(part, static_cast<float *>(workspace) + slot * per_slot);
    }
  });
  return 0;
}

template <bool PACKED>
int matmul(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
           void *workspace) {
  const ty_matmul_attrs *a = reinterpret_cast<const ty_matmul_attrs *>(attrs);
  const Product p =
      product_of(inputs, outputs[0], a->transpose_a != 0, a->transpose_b != 0, PACKED);
  return run_product(ctx, p, workspace);
}

template <bool PACKED>
int matmul_fused(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                 const ty_attrs *attrs, void *workspace) {
  const ty_matmul_fused_attrs *a = reinterpret_cast<const ty_matmul_fused_attrs *>(attrs);
  Product p = product_of(inputs, outputs[0], a->transpose_a != 0, a->transpose_b != 0, PACKED);
  int next = 2;
  if (a->has_bias) p.gemm.bias = static_cast<const float *>(inputs[next++].data);
  if (a->has_residual) p.gemm.residual = static_cast<const float *>(inputs[next].data);
  const char *name = TY_STRING(a, a->activation);
  p.gemm.epilogue = {activation_of(name), static_cast<float>(a->lower),
                     static_cast<float>(a->upper)};
  if (p.gemm.epilogue.activation == ACT_UNKNOWN)
    return ty_fail(ctx, "matmul_fused: unknown activation, got '%s'", name);
  return run_product(ctx, p, workspace);
}

// inputs: a, b, param, lr, [velocity]; outputs: param, [velocity]
int matmul_sgd_update(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                      const ty_attrs *attrs, void *workspace) {
  const auto *a = reinterpret_cast<const ty_matmul_sgd_update_attrs *>(attrs);
  Product p = product_of(inputs, outputs[0], a->transpose_a != 0, a->transpose_b != 0, false);
  const auto floats = [](const ty_tensor &x) { return static_cast<float *>(x.data); };
  Descent update = {};
  update.param = floats(inputs[2]);
  update.rate = *floats(inputs[3]);
  if (a->head.n_inputs > 4) {
    update.velocity = floats(inputs[4]);
    update.new_velocity = floats(outputs[1]);
  }
  update.momentum = static_cast<float>(a->momentum);
  update.decay = static_cast<float>(a->weight_decay);
  update.nesterov = a->nesterov != 0;
  p.gemm.update = &update;
  return run_product(ctx, p, workspace);
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(matmul, TY_KERNEL(matmul<false>, "matmul_f32", "tiled"),
                  TY_KERNEL(matmul<true>, "matmul_f32", "packed"),
                  TY_KERNEL(matmul<true>, "matmul_f32", "packed_transposed"),
                  TY_KERNEL(matmul_fused<false>, "matmul_fused_f32", "tiled"),
                  TY_KERNEL(matmul_fused<true>, "matmul_fused_f32", "packed"),
                  TY_KERNEL(matmul_fused<true>, "matmul_fused_f32", "packed_transposed"),
                  TY_KERNEL(matmul_sgd_update, "matmul_sgd_update_f32", "tiled"))

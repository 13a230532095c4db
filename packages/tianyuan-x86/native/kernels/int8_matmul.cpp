// matmul_quantized: the second operand packed beforehand, or plain and packed batch by batch.
#include "int8.hpp"

namespace TY_ISA {
namespace {

// Rows of the first operand: (rows, k), or (k, rows) where it is transposed.
void copy_rows(const ty_ctx *ctx, Operand *to, const uint8_t *from, int64_t rows, int64_t k,
               bool transposed, int64_t zero_point, bool is_signed) {
  const int64_t stride = q8_row_room(ceil_div(k, 4));
  ty_parallel(ctx, rows, 1 + 16384 / (k + 1), [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t row = begin; row < end; ++row) {
      Operand *target = to + row * stride;
      if (transposed)
        for (int64_t i = 0; i < k; ++i)
          q8_convert(target + i, from + i * rows + row, 1, zero_point, is_signed);
      else
        q8_convert(target, from + row * k, k, zero_point, is_signed);
      for (int64_t i = k; i < stride; ++i) target[i] = 0;
    }
  });
}

void sum_rows(const ty_ctx *ctx, int32_t *to, const Operand *from, int64_t rows, int64_t k,
              int64_t stride, bool is_signed) {
  const bool as_stored = !Q8_FLIPS && is_signed;
  ty_parallel(ctx, rows, 1 + 16384 / (k + 1), [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t row = begin; row < end; ++row) {
      int32_t sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += as_stored ? static_cast<int8_t>(from[row * stride + i]) : from[row * stride + i];
      to[row] = sum;
    }
  });
}

// The index of an operand's matrix that the batch item `at` of the result uses.
int64_t matrix_of(const ty_tensor &tensor, const ty_tensor &y, int64_t at) {
  int64_t found = 0, step = 1;
  for (int32_t back = 2; back < tensor.ndim; ++back) {
    const int64_t extent = tensor.shape[tensor.ndim - 1 - back];
    const int64_t index = at % y.shape[y.ndim - 1 - back];
    at /= y.shape[y.ndim - 1 - back];
    if (extent > 1) found += index * step;
    step *= extent;
  }
  return found;
}

// A call: its plan but for what differs between the items of the batch.
struct Product {
  const ty_matmul_quantized_attrs &a;
  const ty_tensor &x, &w, &y;
  bool packed, has_zeros;
  int64_t batch, rows, n, k;
  const int32_t *bias;
  int32_t shift;  // what the second operand and its zero points are moved by
  Q8Columns columns;
  int32_t *row_sums;
  Operand *copy;  // of the first operand
  int8_t *own;    // where the second operand is packed, if it is not
  Q8Run terms;
  Q8Plan plan;
};

// Rows of all batch items make one product where they share a packed operand.
Product product_of(const ty_matmul_quantized_attrs &a, const ty_tensor *inputs, const ty_tensor &y,
                   bool packed) {
  Product q = {a,
               inputs[0],
               inputs[1],
               y,
               packed,
               false,
               1,
               y.shape[y.ndim - 2],
               y.shape[y.ndim - 1],
               0,
               nullptr,
               0,
               {},
               nullptr,
               nullptr,
               nullptr,
               {},
               {}};
  q.k = q.x.shape[q.x.ndim - (a.transpose_a ? 2 : 1)];
  const int64_t all = ty_count(y) / q.n;
  if (packed && !a.transpose_a && ty_count(q.x) == all * q.k)
    q.rows = all;
  else
    q.batch = all / q.rows;
  q.shift = q.w.dtype == TY_UINT8 ? -128 : 0;
  for (int64_t i = 0; i < a.w_zero_points.count; ++i)
    q.has_zeros |= TY_INTS(&a, a.w_zero_points)[i] + q.shift != 0;
  q.bias = q8_bias_of(a, inputs);
  q.plan.residual = q8_residual_of(a, inputs);
  return q;
}

// Takes room for the tables and for operands, and lets the plan read them.
void plan_tables(Product *q, void *workspace) {
  const int64_t k4 = ceil_div(q->k, 4), row = q8_row_room(k4);
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  q->columns.bias = static_cast<int32_t *>(scratch.take(q8_columns_bytes(q->n)));
  q->columns.w_zero = static_cast<int32_t *>(scratch.take(q8_columns_bytes(q->n)));
  q->columns.multiplier = static_cast<float *>(scratch.take(q8_columns_bytes(q->n)));
  if (!q->has_zeros) q->columns.w_zero = nullptr;
  q->row_sums = static_cast<int32_t *>(scratch.take(4 * q->rows));
  q->copy = static_cast<Operand *>(scratch.take(q->rows * row * sizeof(Operand)));
  q->own = static_cast<int8_t *>(static_cast<void *>(scratch.next));
  q->terms = {0, row / 4};
  Q8Plan &p = q->plan;
  p.is_signed = q->x.dtype == TY_INT8;
  p.pixel = row;
  p.row = p.image = q->rows * row;
  p.n = p.oh = p.n_runs = 1;
  p.ow = q->rows;
  p.runs = &q->terms;
  p.k4 = k4;
  p.o = p.o_room = p.y_pixel = q->n;
  p.bias = q->columns.bias;
  p.multiplier = q->columns.multiplier;
  p.w_zero = q->columns.w_zero;
  p.row_sums = q->row_sums;
  p.store = q8_store_of(q->a);
}

// The rows of a batch item, in place or copied.
const Operand *rows_of(const ty_ctx *ctx, const Product &q, int64_t item) {
  const uint8_t *from =
      static_cast<const uint8_t *>(q.x.data) + matrix_of(q.x, q.y, item) * q.rows * q.k;
  const bool is_signed = q.plan.is_signed;
#if defined(__AVX512VNNI__)
  if (!(Q8_FLIPS && is_signed) && !q.a.transpose_a && q.k == q.plan.pixel) return from;
#endif
  copy_rows(ctx, q.copy, from, q.rows, q.k, q.a.transpose_a, q.a.x_zero_point, is_signed);
  return q.copy;
}

void run_item(const ty_ctx *ctx, const Product &q, int64_t item) {
  const int64_t n = q.n, k = q.k, size = q.rows * n;
  Q8Plan p = q.plan;
  p.x = rows_of(ctx, q, item);
  if (q.has_zeros) sum_rows(ctx, q.row_sums, p.x, q.rows, k, p.pixel, p.is_signed);
  p.weight = static_cast<const int8_t *>(q.w.data);
  if (!q.packed) {
    Q8Form form = {n, k, 1, 1, n, q.w.dtype == TY_UINT8};
    if (q.a.transpose_b) form.o_step = k, form.c_step = 1;
    q8_pack(ctx, q.own, p.weight + matrix_of(q.w, q.y, item) * n * k, form);
    p.weight = q.own;
  }
  q8_fill_columns(q.columns,
                  {q.bias, TY_FLOATS(&q.a, q.a.multipliers), TY_INTS(&q.a, q.a.w_zero_points),
                   q.a.multipliers.count, q.a.w_zero_points.count, n, q.shift});
  q8_fold_zero(q.columns.bias, q.columns.w_zero, p.weight, n, p.k4, k,
               q8_zero(Operand(), q.a.x_zero_point, p.is_signed));
  p.y = static_cast<uint8_t *>(q.y.data) + item * size;
  if (p.residual.data != nullptr) p.residual.data += item * size;
  q8_run(ctx, p);
}

int run(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
        void *workspace, bool packed) {
  const auto &a = *reinterpret_cast<const ty_matmul_quantized_attrs *>(attrs);
  if (ty_count(outputs[0]) == 0) return 0;
  Product q = product_of(a, inputs, outputs[0], packed);
  plan_tables(&q, workspace);
  for (int64_t item = 0; item < q.batch; ++item) run_item(ctx, q, item);
  return 0;
}

int matmul_packed(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                  const ty_attrs *attrs, void *workspace) {
  return run(ctx, inputs, outputs, attrs, workspace, true);
}

int matmul_unpacked(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                    const ty_attrs *attrs, void *workspace) {
  return run(ctx, inputs, outputs, attrs, workspace, false);
}

}  // namespace
}  // namespace TY_ISA

TY_EXPORT_KERNELS(int8_matmul, TY_KERNEL(matmul_packed, "matmul_q8", "packed"),
                  TY_KERNEL(matmul_packed, "matmul_q8", "packed_transposed"),
                  TY_KERNEL(matmul_unpacked, "matmul_q8", "unpacked"))

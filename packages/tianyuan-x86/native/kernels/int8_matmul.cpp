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

int run(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *attrs,
        void *workspace, bool packed) {
  const auto &a = *reinterpret_cast<const ty_matmul_quantized_attrs *>(attrs);
  const ty_tensor &x = inputs[0], &w = inputs[1], &y = outputs[0];
  const int64_t n = y.shape[y.ndim - 1], k = x.shape[x.ndim - (a.transpose_a ? 2 : 1)];
  int64_t rows = y.shape[y.ndim - 2];
  if (ty_count(y) == 0) return 0;
  int64_t batch = ty_count(y) / (rows * n);
  if (packed && !a.transpose_a && ty_count(x) == batch * rows * k) {
    rows *= batch;
    batch = 1;
  }
  const bool is_signed = x.dtype == TY_INT8, w_unsigned = w.dtype == TY_UINT8;
  const int64_t *w_zeros = TY_INTS(&a, a.w_zero_points);
  const int32_t shift = w_unsigned ? -128 : 0;
  bool has_zeros = false;
  for (int64_t i = 0; i < a.w_zero_points.count; ++i) has_zeros |= w_zeros[i] + shift != 0;
  Q8Scratch scratch = {static_cast<char *>(workspace)};
  Q8Columns columns;
  columns.bias = static_cast<int32_t *>(scratch.take(q8_columns_bytes(n)));
  columns.w_zero = static_cast<int32_t *>(scratch.take(q8_columns_bytes(n)));
  columns.multiplier = static_cast<float *>(scratch.take(q8_columns_bytes(n)));
  if (!has_zeros) columns.w_zero = nullptr;
  int32_t *row_sums = static_cast<int32_t *>(scratch.take(4 * rows));
  const int64_t k4 = ceil_div(k, 4);
  Operand *copy = static_cast<Operand *>(scratch.take(rows * q8_row_room(k4) * sizeof(Operand)));
  int8_t *own = static_cast<int8_t *>(static_cast<void *>(scratch.next));
  int next = 2;
  const int32_t *bias = a.has_bias ? static_cast<const int32_t *>(inputs[next++].data) : nullptr;
  const Q8Run terms = {0, q8_row_room(k4) / 4};
  Q8Plan p = {};
  p.is_signed = is_signed;
  p.pixel = q8_row_room(k4);
  p.row = p.image = rows * p.pixel;
  p.n = p.oh = p.n_runs = 1;
  p.ow = rows;
  p.runs = &terms;
  p.k4 = k4;
  p.o = p.o_room = p.y_pixel = n;
  p.bias = columns.bias;
  p.multiplier = columns.multiplier;
  p.w_zero = columns.w_zero;
  p.row_sums = row_sums;
  p.store = q8_store_of(a);
  if (a.has_residual)
    p.residual = {nullptr, inputs[next].dtype == TY_INT8,
                  static_cast<int32_t>(a.residual_zero_point),
                  static_cast<float>(a.residual_multiplier)};
  for (int64_t item = 0; item < batch; ++item) {
    const uint8_t *from = static_cast<const uint8_t *>(x.data) + matrix_of(x, y, item) * rows * k;
    p.x = copy;
#if defined(__AVX512VNNI__)
    const bool in_place = !(Q8_FLIPS && is_signed) && !a.transpose_a && k == p.pixel;
    if (in_place) p.x = from;
#else
    const bool in_place = false;
#endif
    if (!in_place) copy_rows(ctx, copy, from, rows, k, a.transpose_a, a.x_zero_point, is_signed);
    if (has_zeros) sum_rows(ctx, row_sums, p.x, rows, k, p.pixel, is_signed);
    p.weight = static_cast<const int8_t *>(w.data);
    if (!packed) {
      Q8Form form = {n, k, 1, 1, n, w_unsigned};
      if (a.transpose_b) form.o_step = k, form.c_step = 1;
      q8_pack(ctx, own, p.weight + matrix_of(w, y, item) * n * k, form);
      p.weight = own;
    }
    q8_fill_columns(columns, {bias, TY_FLOATS(&a, a.multipliers), w_zeros, a.multipliers.count,
                              a.w_zero_points.count, n, shift});
    q8_fold_zero(columns.bias, columns.w_zero, p.weight, n, k4, k,
                 q8_zero(Operand(), a.x_zero_point, is_signed));
    p.y = static_cast<uint8_t *>(y.data) + item * rows * n;
    if (a.has_residual)
      p.residual.data = static_cast<const uint8_t *>(inputs[next].data) + item * rows * n;
    q8_run(ctx, p);
  }
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

// The elementwise ops on float32: one kernel per op over shared rows, comparisons into bool, where.
#include "rows.hpp"
#include "walk.hpp"

namespace TY_ISA {
namespace {

int run_unary(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, UnaryRow row) {
  const float *x = static_cast<const float *>(inputs[0].data);
  float *y = static_cast<float *>(outputs[0].data);
  ty_parallel(ctx, ty_count(inputs[0]), GRAIN,
              [&](int64_t begin, int64_t end, int32_t) { row(y + begin, x + begin, end - begin); });
  return 0;
}

void binary_piece(const Walk &w, const float *x, const float *y, float *out, int64_t begin,
                  int64_t end, BinaryRow row) {
  float left[BLOCK], right[BLOCK];
  const int64_t most = w.shape[w.ndim - 1] >= ROW_MIN ? end - begin : BLOCK;
  for (int64_t at = begin; at < end;) {
    const int64_t n = walk_block(w, at, end, most);
    const View<float> a = walk_view(w, 0, x, at, n, left), b = walk_view(w, 1, y, at, n, right);
    row(out + at, a.data, b.data, n, a.step, b.step);
    at += n;
  }
}

int run_binary(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, BinaryRow row) {
  Walk w;
  walk_init(&w, outputs[0], inputs, 2);
  const float *x = static_cast<const float *>(inputs[0].data);
  const float *y = static_cast<const float *>(inputs[1].data);
  float *out = static_cast<float *>(outputs[0].data);
  const bool direct = walk_direct(w, 2);
  ty_parallel(ctx, w.size, GRAIN, [&](int64_t begin, int64_t end, int32_t) {
    if (direct) {
      const View<float> a = walk_view<float>(w, 0, x, begin, 0, nullptr);
      const View<float> b = walk_view<float>(w, 1, y, begin, 0, nullptr);
      row(out + begin, a.data, b.data, end - begin, a.step, b.step);
    } else {
      binary_piece(w, x, y, out, begin, end, row);
    }
  });
  return 0;
}

// Rows give truth values as 0 and 1 in float; this narrows them to bool.
void narrow_truth(uint8_t *out, const float *truth, int64_t n) {
  int64_t i = 0;
  for (; i + VF <= n; i += VF) {
    store_truth(out + i, vneq(vload(truth + i), vzero()));
  }
  for (; i < n; ++i) out[i] = truth[i] != 0.0f;
}

int run_test(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, UnaryRow row) {
  const float *x = static_cast<const float *>(inputs[0].data);
  uint8_t *y = static_cast<uint8_t *>(outputs[0].data);
  ty_parallel(ctx, ty_count(inputs[0]), GRAIN, [&](int64_t begin, int64_t end, int32_t) {
    float truth[BLOCK];
    for (int64_t at = begin; at < end; at += BLOCK) {
      const int64_t n = end - at < BLOCK ? end - at : BLOCK;
      row(truth, x + at, n);
      narrow_truth(y + at, truth, n);
    }
  });
  return 0;
}

int run_comparison(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, BinaryRow row) {
  Walk w;
  walk_init(&w, outputs[0], inputs, 2);
  const float *x = static_cast<const float *>(inputs[0].data);
  const float *y = static_cast<const float *>(inputs[1].data);
  uint8_t *out = static_cast<uint8_t *>(outputs[0].data);
  ty_parallel(ctx, w.size, GRAIN, [&](int64_t begin, int64_t end, int32_t) {
    float left[BLOCK], right[BLOCK], truth[BLOCK];
    for (int64_t at = begin; at < end;) {
      const int64_t n = walk_block(w, at, end, BLOCK);
      const View<float> a = walk_view(w, 0, x, at, n, left), b = walk_view(w, 1, y, at, n, right);
      row(truth, a.data, b.data, n, a.step, b.step);
      narrow_truth(out + at, truth, n);
      at += n;
    }
  });
  return 0;
}

// where copies bits, so it serves every dtype of an item size.
template <class T>
int run_where(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs) {
  Walk w;
  walk_init(&w, outputs[0], inputs, 3);
  const uint8_t *mask = static_cast<const uint8_t *>(inputs[0].data);
  const T *x = static_cast<const T *>(inputs[1].data);
  const T *y = static_cast<const T *>(inputs[2].data);
  T *out = static_cast<T *>(outputs[0].data);
  ty_parallel(ctx, w.size, GRAIN, [&](int64_t begin, int64_t end, int32_t) {
    uint8_t truth[BLOCK];
    T left[BLOCK], right[BLOCK];
    for (int64_t at = begin; at < end;) {
      const int64_t n = walk_block(w, at, end, BLOCK);
      const View<uint8_t> m = walk_view(w, 0, mask, at, n, truth);
      const View<T> a = walk_view(w, 1, x, at, n, left), b = walk_view(w, 2, y, at, n, right);
      if (m.step && a.step && b.step) {
        for (int64_t i = 0; i < n; ++i) {
          const T p = a.data[i], q = b.data[i];
          out[at + i] = m.data[i] ? p : q;
        }
      } else {
        for (int64_t i = 0; i < n; ++i) {
          const T p = a.data[a.step * i], q = b.data[b.step * i];
          out[at + i] = m.data[m.step * i] ? p : q;
        }
      }
      at += n;
    }
  });
  return 0;
}

int where_any(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
              void *) {
  switch (ty_itemsize(outputs[0].dtype)) {
    case 1:
      return run_where<uint8_t>(ctx, inputs, outputs);
    case 2:
      return run_where<uint16_t>(ctx, inputs, outputs);
    case 4:
      return run_where<uint32_t>(ctx, inputs, outputs);
    default:
      return run_where<uint64_t>(ctx, inputs, outputs);
  }
}

template <int Opcode>
int unary(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
          void *) {
  return run_unary(ctx, inputs, outputs, unary_row(Opcode));
}

template <int Opcode>
int test(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *, void *) {
  return run_test(ctx, inputs, outputs, unary_row(Opcode));
}

template <int Opcode>
int binary(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
           void *) {
  return run_binary(ctx, inputs, outputs, binary_row(Opcode));
}

// The forms for padded blocks serve ops that map zero to zero, so that padding lanes stay zero.
template <int Opcode>
int unary_blocks(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                 void *) {
  const ty_tensor x = flat_blocks(inputs[0]);
  return run_unary(ctx, &x, outputs, unary_row(Opcode));
}

int run_blocks(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, BinaryRow row) {
  const ty_tensor operands[] = {flat_blocks(inputs[0]), flat_blocks(inputs[1])};
  ty_tensor out = flat_blocks(outputs[0]);
  return run_binary(ctx, operands, &out, row);
}

template <int Opcode>
int binary_blocks(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                  void *) {
  return run_blocks(ctx, inputs, outputs, binary_row(Opcode));
}

int gelu_backward(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
                  void *) {
  return run_binary(ctx, inputs, outputs, gelu_backward_row);
}

int gelu_backward_blocks(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs,
                         const ty_attrs *, void *) {
  return run_blocks(ctx, inputs, outputs, gelu_backward_row);
}

template <int Opcode>
int comparison(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *,
               void *) {
  return run_comparison(ctx, inputs, outputs, binary_row(Opcode));
}

}  // namespace
}  // namespace TY_ISA

#define UNARY(name, OPCODE) TY_KERNEL(unary<OPCODE>, name "_f32", "simd")
#define TEST(name, OPCODE) TY_KERNEL(test<OPCODE>, name "_f32", "simd")
#define BINARY(name, OPCODE) TY_KERNEL(binary<OPCODE>, name "_f32", "simd")
#define UNARY_BLOCKS(name, OPCODE) TY_KERNEL(unary_blocks<OPCODE>, name "_f32", "padded")
#define BINARY_BLOCKS(name, OPCODE) TY_KERNEL(binary_blocks<OPCODE>, name "_f32", "padded")
#define COMPARE(name, OPCODE) TY_KERNEL(comparison<OPCODE>, name "_f32", "simd")

TY_EXPORT_KERNELS(
    elementwise, UNARY("abs", TY_EW_ABS), UNARY("neg", TY_EW_NEG), UNARY("sign", TY_EW_SIGN),
    UNARY("floor", TY_EW_FLOOR), UNARY("ceil", TY_EW_CEIL), UNARY("round", TY_EW_ROUND),
    UNARY("square", TY_EW_SQUARE), UNARY("sqrt", TY_EW_SQRT), UNARY("rsqrt", TY_EW_RSQRT),
    UNARY("reciprocal", TY_EW_RECIPROCAL), UNARY("exp", TY_EW_EXP), UNARY("expm1", TY_EW_EXPM1),
    UNARY("log", TY_EW_LOG), UNARY("log1p", TY_EW_LOG1P), UNARY("sin", TY_EW_SIN),
    UNARY("cos", TY_EW_COS), UNARY("tan", TY_EW_TAN), UNARY("asin", TY_EW_ASIN),
    UNARY("acos", TY_EW_ACOS), UNARY("atan", TY_EW_ATAN), UNARY("sinh", TY_EW_SINH),
    UNARY("cosh", TY_EW_COSH), UNARY("tanh", TY_EW_TANH), UNARY("asinh", TY_EW_ASINH),
    UNARY("acosh", TY_EW_ACOSH), UNARY("atanh", TY_EW_ATANH), UNARY("erf", TY_EW_ERF),
    UNARY("relu", TY_EW_RELU), UNARY("relu6", TY_EW_RELU6), UNARY("sigmoid", TY_EW_SIGMOID),
    UNARY("hsigmoid", TY_EW_HSIGMOID), UNARY("hswish", TY_EW_HSWISH), UNARY("silu", TY_EW_SILU),
    UNARY("gelu", TY_EW_GELU), UNARY("softplus", TY_EW_SOFTPLUS), TEST("isnan", TY_EW_ISNAN),
    TEST("isinf", TY_EW_ISINF), TEST("logical_not", TY_EW_LOGICAL_NOT), BINARY("add", TY_EW_ADD),
    BINARY("sub", TY_EW_SUB), BINARY("mul", TY_EW_MUL), BINARY("div", TY_EW_DIV),
    BINARY("floor_div", TY_EW_FLOOR_DIV), BINARY("mod", TY_EW_MOD), BINARY("pow", TY_EW_POW),
    BINARY("maximum", TY_EW_MAXIMUM), BINARY("minimum", TY_EW_MINIMUM),
    BINARY("atan2", TY_EW_ATAN2), BINARY("logaddexp", TY_EW_LOGADDEXP),
    COMPARE("equal", TY_EW_EQUAL), COMPARE("not_equal", TY_EW_NOT_EQUAL),
    COMPARE("less", TY_EW_LESS), COMPARE("less_equal", TY_EW_LESS_EQUAL),
    COMPARE("greater", TY_EW_GREATER), COMPARE("greater_equal", TY_EW_GREATER_EQUAL),
    COMPARE("logical_and", TY_EW_LOGICAL_AND), COMPARE("logical_or", TY_EW_LOGICAL_OR),
    COMPARE("logical_xor", TY_EW_LOGICAL_XOR), TY_KERNEL(where_any, "where_any", "select"),
    UNARY_BLOCKS("abs", TY_EW_ABS), UNARY_BLOCKS("neg", TY_EW_NEG),
    UNARY_BLOCKS("square", TY_EW_SQUARE), UNARY_BLOCKS("tanh", TY_EW_TANH),
    UNARY_BLOCKS("relu", TY_EW_RELU), UNARY_BLOCKS("relu6", TY_EW_RELU6),
    UNARY_BLOCKS("hswish", TY_EW_HSWISH), UNARY_BLOCKS("silu", TY_EW_SILU),
    UNARY_BLOCKS("gelu", TY_EW_GELU), BINARY_BLOCKS("add", TY_EW_ADD),
    BINARY_BLOCKS("sub", TY_EW_SUB), BINARY_BLOCKS("mul", TY_EW_MUL),
    BINARY_BLOCKS("maximum", TY_EW_MAXIMUM), BINARY_BLOCKS("minimum", TY_EW_MINIMUM),
    TY_KERNEL(gelu_backward, "gelu_backward_f32", "simd"),
    TY_KERNEL(gelu_backward_blocks, "gelu_backward_f32", "padded"))

// Elementwise ops on integers, bool and float64, as plain loops that the compiler vectorises.
#include "walk.hpp"

namespace TY_ISA {
namespace {

// The unsigned type in which arithmetic wraps without undefined behaviour.
template <class T, int Size = sizeof(T)>
struct Wide {
  typedef uint32_t type;
};
template <class T>
struct Wide<T, 8> {
  typedef uint64_t type;
};
template <>
struct Wide<double, 8> {
  typedef double type;
};

template <class T>
constexpr bool is_float() {
  return T(0.5) != T(0);
}
template <class T>
constexpr bool is_signed() {
  return T(-1) < T(0);
}

#define TY_INLINE_MEMBER inline __attribute__((always_inline))
#define OPERATION(Name, ...)                    \
  struct Name {                                 \
    template <class T>                          \
    static TY_INLINE_MEMBER auto of(T a, T b) { \
      typedef typename Wide<T>::type W;         \
      (void)sizeof(W);                          \
      (void)b;                                  \
      __VA_ARGS__                               \
    }                                           \
  };

OPERATION(Add, return (T)((W)a + (W)b);)
OPERATION(Sub, return (T)((W)a - (W)b);)
OPERATION(Mul, return (T)((W)a * (W)b);)
OPERATION(Div, return (T)(a / b);)
OPERATION(Maximum, return (a > b || a != a) ? a : b;)
OPERATION(Minimum, return (a < b || a != a) ? a : b;)
OPERATION(Equal, return (uint8_t)(a == b);)
OPERATION(NotEqual, return (uint8_t)(a != b);)
OPERATION(Less, return (uint8_t)(a < b);)
OPERATION(LessEqual, return (uint8_t)(a <= b);)
OPERATION(Greater, return (uint8_t)(a > b);)
OPERATION(GreaterEqual, return (uint8_t)(a >= b);)
OPERATION(LogicalAnd, return (uint8_t)(a != T(0) && b != T(0));)
OPERATION(LogicalOr, return (uint8_t)(a != T(0) || b != T(0));)
OPERATION(LogicalXor, return (uint8_t)((a != T(0)) != (b != T(0)));)
OPERATION(BitwiseAnd, return (T)(a & b);)
OPERATION(BitwiseOr, return (T)(a | b);)
OPERATION(BitwiseXor, return (T)(a ^ b);)
// numpy: a count of all bits or more gives 0, or the sign spread over all bits.
OPERATION(LeftShift, return (uint64_t)b < 8 * sizeof(T) ? (T)((W)a << (W)b) : T(0);)
OPERATION(RightShift,
          return (uint64_t)b < 8 * sizeof(T) ? (T)(a >> b) : (T)(is_signed<T>() && a < 0 ? -1 : 0);)
// numpy: division by zero gives 0; dividing by -1 wraps.
OPERATION(FloorDiv, if (b == T(0)) return T(0);
          if (is_signed<T>() && b == T(-1)) return (T)(W(0) - (W)a); T q = (T)(a / b);
          return (T)((a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q);)
OPERATION(Mod, if (b == T(0) || (is_signed<T>() && b == T(-1))) return T(0); T r = (T)(a % b);
          return (T)(r != 0 && (r < 0) != (b < 0) ? r + b : r);)

OPERATION(Copy, return a;)
OPERATION(Abs, return a < T(0) ? (T)(W(0) - (W)a) : a;)
OPERATION(Neg, return (T)(W(0) - (W)a);)
OPERATION(Sign, return (T)((a > T(0)) - (a < T(0)));)
OPERATION(Square, return (T)((W)a * (W)a);)
OPERATION(Relu, return a > T(0) ? a : T(0);)
OPERATION(Relu6, return a > T(0) ? (a < T(6) ? a : T(6)) : T(0);)
OPERATION(LogicalNot, return (uint8_t)(a == T(0));)
OPERATION(BitwiseNot, return (T)(~a);)
OPERATION(BoolNot, return (T)(a == 0);)

template <class T, class R, class Op>
void loop(R *out, View<T> a, View<T> b, int64_t n) {
  if (a.step && b.step) {
    for (int64_t i = 0; i < n; ++i) out[i] = Op::of(a.data[i], b.data[i]);
  } else if (a.step) {
    const T y = *b.data;
    for (int64_t i = 0; i < n; ++i) out[i] = Op::of(a.data[i], y);
  } else {
    const T x = *a.data;
    for (int64_t i = 0; i < n; ++i) out[i] = Op::of(x, b.data[b.step * i]);
  }
}

template <class Op, class T>
int run_binary(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs) {
  typedef decltype(Op::of(T(), T())) R;
  Walk w;
  walk_init(&w, outputs[0], inputs, 2);
  const T *x = static_cast<const T *>(inputs[0].data);
  const T *y = static_cast<const T *>(inputs[1].data);
  R *out = static_cast<R *>(outputs[0].data);
  ty_parallel(ctx, w.size, GRAIN, [&](int64_t begin, int64_t end, int32_t) {
    T left[BLOCK], right[BLOCK];
    for (int64_t at = begin; at < end;) {
      const int64_t n = walk_block(w, at, end, BLOCK);
      loop<T, R, Op>(out + at, walk_view(w, 0, x, at, n, left), walk_view(w, 1, y, at, n, right),
                     n);
      at += n;
    }
  });
  return 0;
}

template <class Op, class T>
int run_unary(const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs) {
  typedef decltype(Op::of(T(), T())) R;
  const T *x = static_cast<const T *>(inputs[0].data);
  R *out = static_cast<R *>(outputs[0].data);
  ty_parallel(ctx, ty_count(inputs[0]), GRAIN, [&](int64_t begin, int64_t end, int32_t) {
    for (int64_t i = begin; i < end; ++i) out[i] = Op::of(x[i], x[i]);
  });
  return 0;
}

int no_type(const ty_ctx *ctx, const ty_tensor *inputs) {
  return ty_fail(ctx, "elementwise: dtype is not served, got code %d", (int)inputs[0].dtype);
}

#define ARGUMENTS \
  const ty_ctx *ctx, const ty_tensor *inputs, ty_tensor *outputs, const ty_attrs *, void *

template <class Op>
int binary_integer(ARGUMENTS) {
  switch (inputs[0].dtype) {
    case TY_INT8:
      return run_binary<Op, int8_t>(ctx, inputs, outputs);
    case TY_INT16:
      return run_binary<Op, int16_t>(ctx, inputs, outputs);
    case TY_INT32:
      return run_binary<Op, int32_t>(ctx, inputs, outputs);
    case TY_INT64:
      return run_binary<Op, int64_t>(ctx, inputs, outputs);
    case TY_BOOL:
    case TY_UINT8:
      return run_binary<Op, uint8_t>(ctx, inputs, outputs);
    case TY_UINT32:
      return run_binary<Op, uint32_t>(ctx, inputs, outputs);
    default:
      return no_type(ctx, inputs);
  }
}

template <class Op>
int binary_double(ARGUMENTS) {
  return run_binary<Op, double>(ctx, inputs, outputs);
}

template <class Op>
int binary_bool(ARGUMENTS) {
  return run_binary<Op, uint8_t>(ctx, inputs, outputs);
}

template <class Op>
int unary_integer(ARGUMENTS) {
  switch (inputs[0].dtype) {
    case TY_INT8:
      return run_unary<Op, int8_t>(ctx, inputs, outputs);
    case TY_INT16:
      return run_unary<Op, int16_t>(ctx, inputs, outputs);
    case TY_INT32:
      return run_unary<Op, int32_t>(ctx, inputs, outputs);
    case TY_INT64:
      return run_unary<Op, int64_t>(ctx, inputs, outputs);
    case TY_BOOL:
    case TY_UINT8:
      return run_unary<Op, uint8_t>(ctx, inputs, outputs);
    case TY_UINT32:
      return run_unary<Op, uint32_t>(ctx, inputs, outputs);
    default:
      return no_type(ctx, inputs);
  }
}

template <class Op>
int unary_double(ARGUMENTS) {
  return run_unary<Op, double>(ctx, inputs, outputs);
}

template <class Op>
int unary_bool(ARGUMENTS) {
  return run_unary<Op, uint8_t>(ctx, inputs, outputs);
}

}  // namespace
}  // namespace TY_ISA

#define INTEGER(name, Op) TY_KERNEL(binary_integer<Op>, name "_int", "loop")
#define INTEGER1(name, Op) TY_KERNEL(unary_integer<Op>, name "_int", "loop")
#define DOUBLE(name, Op) TY_KERNEL(binary_double<Op>, name "_f64", "loop")
#define DOUBLE1(name, Op) TY_KERNEL(unary_double<Op>, name "_f64", "loop")
#define BOTH(name, Op) INTEGER(name, Op), DOUBLE(name, Op)
#define BOTH1(name, Op) INTEGER1(name, Op), DOUBLE1(name, Op)
#define BOOLEAN(name, Op) TY_KERNEL(binary_bool<Op>, name "_bool", "loop")

TY_EXPORT_KERNELS(typed, BOTH("add", Add), BOTH("sub", Sub), BOTH("mul", Mul), DOUBLE("div", Div),
                  BOTH("maximum", Maximum), BOTH("minimum", Minimum), BOTH("equal", Equal),
                  BOTH("not_equal", NotEqual), BOTH("less", Less), BOTH("less_equal", LessEqual),
                  BOTH("greater", Greater), BOTH("greater_equal", GreaterEqual),
                  BOTH("logical_and", LogicalAnd), BOTH("logical_or", LogicalOr),
                  BOTH("logical_xor", LogicalXor), INTEGER("bitwise_and", BitwiseAnd),
                  INTEGER("bitwise_or", BitwiseOr), INTEGER("bitwise_xor", BitwiseXor),
                  INTEGER("left_shift", LeftShift), INTEGER("right_shift", RightShift),
                  INTEGER("floor_div", FloorDiv), INTEGER("mod", Mod), BOOLEAN("add", LogicalOr),
                  BOOLEAN("mul", LogicalAnd), BOOLEAN("maximum", LogicalOr),
                  BOOLEAN("minimum", LogicalAnd), INTEGER1("abs", Abs), INTEGER1("neg", Neg),
                  INTEGER1("sign", Sign), BOTH1("square", Square), INTEGER1("relu", Relu),
                  INTEGER1("relu6", Relu6), BOTH1("logical_not", LogicalNot),
                  INTEGER1("floor", Copy), INTEGER1("ceil", Copy), INTEGER1("round", Copy),
                  INTEGER1("bitwise_not", BitwiseNot),
                  TY_KERNEL(unary_bool<BoolNot>, "bitwise_not_bool", "loop"))

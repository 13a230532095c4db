// Compiles the float32 rows of every elementwise op.
#include "rows.hpp"

#include "kernel.hpp"
#include "vmath.hpp"

extern "C" {
float tanf(float);
float asinf(float);
float acosf(float);
float atanf(float);
float sinhf(float);
float coshf(float);
float asinhf(float);
float acoshf(float);
float atanhf(float);
float atan2f(float, float);
}

namespace TY_ISA {
namespace {

template <class F>
TY_INLINE void map1(float *out, const float *x, int64_t n, const F &f) {
  int64_t i = 0;
  for (; i + VF <= n; i += VF) vstore(out + i, f(vload(x + i)));
  if (i < n) {
    const vtail t = vtail_of(n - i);
    vstore_tail(out + i, f(vload_tail(x + i, t)), t);
  }
}

template <class F>
TY_INLINE void map2(float *out, const float *x, const float *y, int64_t n, int x_step, int y_step,
                    const F &f) {
  if (x_step && y_step) {
    int64_t i = 0;
    for (; i + VF <= n; i += VF) vstore(out + i, f(vload(x + i), vload(y + i)));
    if (i < n) {
      const vtail t = vtail_of(n - i);
      vstore_tail(out + i, f(vload_tail(x + i, t), vload_tail(y + i, t)), t);
    }
  } else if (x_step) {
    const vf b = vset1(*y);
    map1(out, x, n, [&](vf a) { return f(a, b); });
  } else if (y_step) {
    const vf a = vset1(*x);
    map1(out, y, n, [&](vf b) { return f(a, b); });
  } else {
    const vf r = f(vset1(*x), vset1(*y));
    int64_t i = 0;
    for (; i + VF <= n; i += VF) vstore(out + i, r);
    if (i < n) vstore_tail(out + i, r, vtail_of(n - i));
  }
}

TY_INLINE vf vtruth(vm m) { return vselect(m, vset1(1.0f), vzero()); }
TY_INLINE vm vnonzero(vf x) { return vneq(x, vzero()); }

TY_INLINE vf vsign(vf x) {
  vf one = vcopysign(vset1(1.0f), x);
  return vselect(vm_or(viszero(x), visnan(x)), x, one);
}

// numpy's divmod: the remainder takes the divisor's sign, the quotient is floored.
TY_INLINE float remainder_of(float a, float b) {
  float mod = fmodf(a, b);
  if (b == 0.0f) return mod;
  if (mod != 0.0f) return (b < 0.0f) != (mod < 0.0f) ? mod + b : mod;
  return __builtin_copysignf(0.0f, b);
}

TY_INLINE float floor_quotient(float a, float b) {
  if (b == 0.0f) return a / b;
  float mod = fmodf(a, b);
  float div = (a - mod) / b;
  if (mod != 0.0f && (b < 0.0f) != (mod < 0.0f)) div -= 1.0f;
  if (div == 0.0f) return __builtin_copysignf(0.0f, a / b);
  float whole = __builtin_floorf(div);
  return div - whole > 0.5f ? whole + 1.0f : whole;
}

#define UNARY(name, expression)                                \
  void name##_row(float *out, const float *in, int64_t n) {    \
    map1(out, in, n, [](vf x) -> vf { return (expression); }); \
  }
#define BINARY(name, expression)                                                           \
  void name##_row(float *out, const float *a, const float *b, int64_t n, int sa, int sb) { \
    map2(out, a, b, n, sa, sb, [](vf x, vf y) -> vf { return (expression); });             \
  }

UNARY(abs, vabs(x))
UNARY(neg, vneg(x))
UNARY(sign, vsign(x))
UNARY(floor, vfloor(x))
UNARY(ceil, vceil(x))
UNARY(round, vround(x))
UNARY(square, vmul(x, x))
UNARY(sqrt, vsqrt(x))
UNARY(rsqrt, vdiv(vset1(1.0f), vsqrt(x)))
UNARY(reciprocal, vdiv(vset1(1.0f), x))
UNARY(exp, vexp(x))
UNARY(expm1, vexpm1(x))
UNARY(log, vlog(x))
UNARY(log1p, vlog1p(x))
UNARY(sin, vsin(x))
UNARY(cos, vcos(x))
UNARY(tan, vlanes(tanf, x))
UNARY(asin, vlanes(asinf, x))
UNARY(acos, vlanes(acosf, x))
UNARY(atan, vlanes(atanf, x))
UNARY(sinh, vlanes(sinhf, x))
UNARY(cosh, vlanes(coshf, x))
UNARY(tanh, vtanh(x))
UNARY(asinh, vlanes(asinhf, x))
UNARY(acosh, vlanes(acoshf, x))
UNARY(atanh, vlanes(atanhf, x))
UNARY(erf, verf(x))
UNARY(relu, vrelu(x))
UNARY(relu6, vclip(x, 0.0f, 6.0f))
UNARY(sigmoid, vsigmoid(x))
UNARY(hsigmoid, vhsigmoid(x))
UNARY(hswish, vmul(x, vhsigmoid(x)))
UNARY(silu, vmul(x, vsigmoid(x)))
UNARY(gelu, vgelu(x))
UNARY(softplus, vsoftplus(x))
UNARY(isnan, vtruth(visnan(x)))
UNARY(isinf, vtruth(veq(vabs(x), vinf())))
UNARY(logical_not, vtruth(viszero(x)))

BINARY(add, vadd(x, y))
BINARY(sub, vsub(x, y))
BINARY(mul, vmul(x, y))
BINARY(div, vdiv(x, y))
BINARY(floor_div, vlanes2(floor_quotient, x, y))
BINARY(mod, vlanes2(remainder_of, x, y))
BINARY(power, vlanes2(powf, x, y))
BINARY(maximum, vmax(x, y))
BINARY(minimum, vmin(x, y))
BINARY(atan2, vlanes2(atan2f, x, y))
BINARY(logaddexp, vlogaddexp(x, y))
BINARY(equal, vtruth(veq(x, y)))
BINARY(not_equal, vtruth(vneq(x, y)))
BINARY(less, vtruth(vlt(x, y)))
BINARY(less_equal, vtruth(vle(x, y)))
BINARY(greater, vtruth(vgt(x, y)))
BINARY(greater_equal, vtruth(vge(x, y)))
BINARY(logical_and, vtruth(vm_and(vnonzero(x), vnonzero(y))))
BINARY(logical_or, vtruth(vm_or(vnonzero(x), vnonzero(y))))
BINARY(logical_xor, vtruth(vm_xor(vnonzero(x), vnonzero(y))))

UNARY(cube, vmul(vmul(x, x), x))

// The exponents of everyday code need no logarithm.
void pow_row(float *out, const float *a, const float *b, int64_t n, int sa, int sb) {
  const float exponent = *b;
  if (sb == 0 && sa == 1 && exponent == 2.0f) return square_row(out, a, n);
  if (sb == 0 && sa == 1 && exponent == 3.0f) return cube_row(out, a, n);
  if (sb == 0 && sa == 1 && exponent == -1.0f) return reciprocal_row(out, a, n);
  power_row(out, a, b, n, sa, sb);
}

const UnaryRow unary_rows[] = {
    abs_row,   neg_row,     sign_row,        floor_row,       ceil_row,  round_row, square_row,
    sqrt_row,  rsqrt_row,   reciprocal_row,  exp_row,         expm1_row, log_row,   log1p_row,
    sin_row,   cos_row,     tan_row,         asin_row,        acos_row,  atan_row,  sinh_row,
    cosh_row,  tanh_row,    asinh_row,       acosh_row,       atanh_row, erf_row,   relu_row,
    relu6_row, sigmoid_row, hsigmoid_row,    hswish_row,      silu_row,  gelu_row,  softplus_row,
    isnan_row, isinf_row,   logical_not_row, logical_not_row,  // bitwise_not of a truth value
};
const BinaryRow binary_rows[] = {
    add_row,         sub_row,           mul_row,         div_row,        floor_div_row,
    mod_row,         pow_row,           maximum_row,     minimum_row,    atan2_row,
    logaddexp_row,   equal_row,         not_equal_row,   less_row,       less_equal_row,
    greater_row,     greater_equal_row, logical_and_row, logical_or_row, logical_xor_row,
    logical_and_row, logical_or_row,    logical_xor_row,  // bitwise ops of truth values
};
static_assert(sizeof(unary_rows) / sizeof(unary_rows[0]) == TY_EW_ADD, "one row per opcode");
static_assert(sizeof(binary_rows) / sizeof(binary_rows[0]) == TY_EW_LEFT_SHIFT - TY_EW_ADD,
              "one row per opcode");

}  // namespace

void gelu_backward_row(float *out, const float *g, const float *x, int64_t n, int g_step,
                       int x_step) {
  map2(out, g, x, n, g_step, x_step, [](vf a, vf b) { return vmul(a, vgelu_slope(b)); });
}

UnaryRow unary_row(int64_t opcode) {
  return opcode >= 0 && opcode < TY_EW_ADD ? unary_rows[opcode] : nullptr;
}

BinaryRow binary_row(int64_t opcode) {
  return opcode >= TY_EW_ADD && opcode < TY_EW_LEFT_SHIFT ? binary_rows[opcode - TY_EW_ADD]
                                                          : nullptr;
}

void where_row(float *out, const float *mask, const float *x, const float *y, int64_t n, int m_step,
               int x_step, int y_step) {
  if (n > 0 && m_step == 0) {
    const float *chosen = *mask != 0.0f ? x : y;
    const int step = *mask != 0.0f ? x_step : y_step;
    for (int64_t i = 0; i < n; ++i) out[i] = chosen[step * i];
    return;
  }
  int64_t i = 0;
  for (; i + VF <= n; i += VF) {
    const vf a = x_step ? vload(x + i) : vset1(*x), b = y_step ? vload(y + i) : vset1(*y);
    vstore(out + i, vselect(vnonzero(vload(mask + i)), a, b));
  }
  for (; i < n; ++i) out[i] = mask[i] != 0.0f ? x[x_step * i] : y[y_step * i];
}

}  // namespace TY_ISA

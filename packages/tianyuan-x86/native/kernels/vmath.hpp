// Float32 functions on vectors. Polynomials are minimax fits over the reduced range; every function
// states its error bound, and treats NaN, infinities, zeros and subnormals as numpy does.
#pragma once

#include "simd.hpp"

extern "C" {
float sinf(float);
float cosf(float);
float powf(float, float);
float fmodf(float, float);
}

namespace TY_ISA {

TY_INLINE vf vpoly(vf x, const float *c, int degree) {
  vf sum = vset1(c[degree]);
  for (int i = degree - 1; i >= 0; --i) sum = vfma(sum, x, vset1(c[i]));
  return sum;
}

TY_INLINE vf vinf() { return vset1(__builtin_inff()); }
TY_INLINE vf vnan() { return vset1(__builtin_nanf("")); }
TY_INLINE vf vcopysign(vf magnitude, vf sign) {
  return vor(vabs(magnitude), vand(vset1(-0.0f), sign));
}
TY_INLINE vm viszero(vf a) { return veq(a, vzero()); }

// x = n ln2 + r with |r| <= ln2 / 2; returns (e^r - 1 - r) / r^2.
TY_INLINE vf exp_reduce(vf x, vf *n, vf *r) {
  static const float c[] = {0.5f,           0.166666672f, 0.0416662693f,
                            0.00833326485f, 0.001394619f, 0.000199179733f};
  *n = vround(vmul(x, vset1(1.44269504f)));
  *r = vfnma(*n, vset1(-2.12194440e-4f), vfnma(*n, vset1(0.693359375f), x));
  return vpoly(*r, c, 5);
}

// a * 2^n for n in [-252, 254], right also where the result is subnormal or infinite.
TY_INLINE vf scale_by_pow2(vf a, vf n) {
#if TY_VF == 16
  return _mm512_scalef_ps(a, n);
#else
  vi whole = vf_to_vi(n), half = vi_sar(whole, 1);
  return vmul(vmul(a, vpow2(half)), vpow2(vi_sub(whole, half)));
#endif
}

// 1 ulp.
TY_INLINE vf vexp(vf x) {
  vf n, r, clamped = vmax_fast(vset1(-105.0f), vmin_fast(vset1(89.0f), x));
  vf p = exp_reduce(clamped, &n, &r);
  return scale_by_pow2(vadd(vset1(1.0f), vfma(vmul(r, r), p, r)), n);
}

// 2 ulp.
TY_INLINE vf vexpm1(vf x) {
  vf n, r, clamped = vmax_fast(vset1(-30.0f), vmin_fast(vset1(89.0f), x));
  vf p = exp_reduce(clamped, &n, &r);
  p = vfma(vmul(r, r), p, r);
  vf half_scale = scale_by_pow2(vset1(0.5f), n);
  vf y = vmul(vset1(2.0f), vfma(half_scale, p, vsub(half_scale, vset1(0.5f))));
  return vselect(viszero(x), x, y);
}

// 1 ulp.
TY_INLINE vf vlog(vf x) {
  static const float c[] = {0.333333105f,  -0.249999866f, 0.200022265f,  -0.16669251f, 0.142186582f,
                            -0.123843484f, 0.118729763f,  -0.117898077f, 0.0691536814f};
  vm tiny = vlt(x, vset1(1.17549435e-38f));
  vf scaled = vselect(tiny, vmul(x, vset1(8388608.0f)), x);
  // Mantissa into [sqrt(1/2), sqrt(2)): subtracting its bits carries into the exponent.
  vi bits = vi_sub(vf_as_vi(scaled), vi_set1(0x3f3504f3));
  vf e = vi_to_vf(vi_sar(bits, 23));
  vf m = vi_as_vf(vi_add(vi_and(bits, vi_set1(0x007fffff)), vi_set1(0x3f3504f3)));
  e = vselect(tiny, vsub(e, vset1(23.0f)), e);
  vf r = vsub(m, vset1(1.0f)), square = vmul(r, r);
  vf y = vmul(vmul(square, r), vpoly(r, c, 8));
  y = vfma(e, vset1(-2.12194440e-4f), y);
  y = vfnma(vset1(0.5f), square, y);
  y = vadd(r, y);
  y = vfma(e, vset1(0.693359375f), y);
  y = vselect(veq(x, vinf()), x, y);
  y = vselect(viszero(x), vneg(vinf()), y);
  y = vselect(vlt(x, vzero()), vnan(), y);
  return vselect(visnan(x), x, y);
}

// 2 ulp: log(u) corrected by what 1 + x lost.
TY_INLINE vf vlog1p(vf x) {
  vf u = vadd(vset1(1.0f), x);
  vf lost = vsub(x, vsub(u, vset1(1.0f)));
  vf y = vadd(vlog(u), vdiv(lost, u));
  y = vselect(viszero(u), vneg(vinf()), y);
  return vselect(vm_or(viszero(x), veq(x, vinf())), x, y);
}

// 2 ulp.
TY_INLINE vf vtanh(vf x) {
  static const float c[] = {-0.333332777f, 0.133313283f, -0.0537292287f, 0.020601999f,
                            -0.00566078071f};
  vf a = vabs(x), z = vmul(x, x);
  vf near = vfma(vmul(z, x), vpoly(z, c, 4), x);
  vf e = vexp(vadd(a, a));
  vf far = vcopysign(vsub(vset1(1.0f), vdiv(vset1(2.0f), vadd(e, vset1(1.0f)))), x);
  vf y = vselect(vlt(a, vset1(0.625f)), near, far);
  return vselect(visnan(x), x, y);
}

// 3 ulp, in both tails.
TY_INLINE vf vsigmoid(vf x) {
  vf e = vexp(vneg(vabs(x)));
  vf s = vdiv(vset1(1.0f), vadd(vset1(1.0f), e));
  return vselect(vlt(x, vzero()), vmul(e, s), s);
}

// 2 ulp: an odd polynomial near zero, else 1 - exp(log(erfc(t))) with the logarithm fitted.
TY_INLINE vf verf(vf x) {
  static const float inner[] = {0.128379151f,   -0.376124948f,  0.112818025f,
                                -0.0267655663f, 0.00499098003f, -0.000597689359f};
  static const float outer[] = {0.000170552026f, -0.129495159f,   -0.633386672f,   -0.108236618f,
                                0.0250914972f,   -0.00416052714f, 0.000432303001f, -2.0909556e-05f};
  vf t = vmin_fast(vset1(4.0f), vabs(x)), z = vmul(x, x);
  vf near = vfma(x, vpoly(z, inner, 5), x);
  vf far = vsub(vset1(1.0f), vexp(vsub(vpoly(t, outer, 7), t)));
  vf y = vselect(vlt(t, vset1(0.93f)), near, vcopysign(far, x));
  return vselect(visnan(x), x, y);
}

// Applies a scalar function to every lane.
template <class F>
TY_INLINE vf vlanes(F f, vf x) {
  float lanes[VF];
  vstore(lanes, x);
  for (int i = 0; i < VF; ++i) lanes[i] = f(lanes[i]);
  return vload(lanes);
}

template <class F>
TY_INLINE vf vlanes2(F f, vf x, vf y) {
  float left[VF], right[VF];
  vstore(left, x);
  vstore(right, y);
  for (int i = 0; i < VF; ++i) left[i] = f(left[i], right[i]);
  return vload(left);
}

// 2 ulp up to |x| = 16384, beyond which the three-part pi / 2 runs out and libm takes over.
// quadrant_shift 0 gives the sine, 1 the cosine.
TY_INLINE vf sin_quadrant(vf x, int quadrant_shift) {
  static const float s[] = {-0.166666672f, 0.00833332911f, -0.000198392561f, 2.71756448e-06f};
  static const float c[] = {0.0416666456f, -0.0013887306f, 2.44312032e-05f};
  vf j = vround(vmul(x, vset1(0.636619772f)));
  vf r = vfnma(j, vset1(1.57079637f), x);
  r = vfnma(j, vset1(-4.37113901e-08f), r);
  r = vfnma(j, vset1(-1.77635684e-15f), r);
  vi quadrant = vi_add(vf_to_vi(j), vi_set1(quadrant_shift));
  vf z = vmul(r, r);
  vf sine = vfma(vmul(z, r), vpoly(z, s, 3), r);
  vf cosine = vfma(vmul(z, z), vpoly(z, c, 2), vfnma(vset1(0.5f), z, vset1(1.0f)));
  vm odd = vi_eq(vi_and(quadrant, vi_set1(1)), vi_set1(1));
  vf y = vselect(odd, cosine, sine);
  vf sign = vi_as_vf(vi_shl(vi_and(quadrant, vi_set1(2)), 30));
  return vxor(y, sign);
}

TY_INLINE bool any_beyond_reduction(vf x) { return vm_bits(vgt(vabs(x), vset1(16384.0f))) != 0; }

TY_INLINE vf vsin(vf x) {
  if (__builtin_expect(any_beyond_reduction(x), 0)) return vlanes(sinf, x);
  return vselect(viszero(x), x, sin_quadrant(x, 0));
}

TY_INLINE vf vcos(vf x) {
  if (__builtin_expect(any_beyond_reduction(x), 0)) return vlanes(cosf, x);
  return sin_quadrant(x, 1);
}

// numpy's maximum of x and a number: NaN stays NaN.
TY_INLINE vf vrelu(vf x) { return vmax_fast(vzero(), x); }
TY_INLINE vf vclip(vf x, float low, float high) {
  return vmin_fast(vset1(high), vmax_fast(vset1(low), x));
}
TY_INLINE vf vhsigmoid(vf x) { return vdiv(vclip(vadd(x, vset1(3.0f)), 0.0f, 6.0f), vset1(6.0f)); }
TY_INLINE vf vsoftplus(vf x) { return vadd(vrelu(x), vlog1p(vexp(vneg(vabs(x))))); }

// x Phi(x) as (x / 2) erf(x / sqrt(2)) + x / 2: 3 ulp above zero, 2e-7 absolute below, where the
// two cancel.
#if TY_VF == 16
// One of 16 polynomials for each lane of a: those around whole numbers of a * scale, whose
// coefficients, c[power][number], are looked up in registers.
TY_INLINE vf vpieces(vf a, float scale, const float (&c)[6][16]) {
  const vf factor = vset1(scale), magic = vset1(12582912.0f);  // whose sums end in the number
  const vf shifted = vfma(a, factor, magic), t = vfms(a, factor, vsub(shifted, magic));
  const auto look_up = [&](int i) { return _mm512_permutexvar_ps(vf_as_vi(shifted), vload(c[i])); };
  vf y = look_up(5);
#pragma GCC unroll 5
  for (int i = 4; i >= 0; --i) y = vfma(y, t, look_up(i));
  return y;
}

// The error function by 16 polynomials between 0 and 5.5 (least squares at Chebyshev nodes);
// beyond, it is 1.
TY_INLINE vf vgelu(vf x) {
  alignas(64) static const float c[6][16] = {
      {0.0f, 0.295542568f, 0.551920474f, 0.744850695f, 0.870794237f, 0.942112863f, 0.977145731f,
       0.992073238f, 0.997590542f, 0.999359369f, 0.999851227f, 0.99996984f, 0.999994695f,
       0.999999166f, 0.999999881f, 1.0f},
      {0.302645862f, 0.281638741f, 0.226968378f, 0.158399433f, 0.0957320109f, 0.0501044206f,
       0.0227096379f, 0.008913734f, 0.00302987336f, 0.000891876291f, 0.000227352764f,
       5.01893264e-05f, 9.59485078e-06f, 1.58847718e-06f, 2.27740301e-07f, 0.0f},
      {-7.05998531e-08f, -0.0202601142f, -0.0326546431f, -0.0341846235f, -0.0275473353f,
       -0.0180223361f, -0.00980234612f, -0.00448916433f, -0.00174413726f, -0.000577755214f,
       -0.000163581848f, -3.9371309e-05f, -8.53566871e-06f, -1.22048959e-06f, -7.2510467e-08f,
       0.0f},
      {-0.00725717284f, -0.00578189781f, -0.00231044344f, 0.00111993728f, 0.00298885722f,
       0.00312012574f, 0.00227606297f, 0.00129317865f, 0.000596362806f, 0.00022785175f,
       7.29826425e-05f, 1.97459813e-05f, 4.53566781e-06f, 8.87741407e-07f, 1.48450667e-07f, 0.0f},
      {8.501504e-07f, 0.000688200875f, 0.000942211307f, 0.000696088769f, 0.000232278107f,
       -0.000126048064f, -0.00025401247f, -0.000215962282f, -0.000128617481f, -5.92018077e-05f,
       -2.24322466e-05f, -8.05005584e-06f, -9.80185746e-07f, -1.23597033e-06f, -5.73072725e-07f,
       0.0f},
      {0.000154357331f, 0.000104534454f, -4.24164864e-06f, -8.35767714e-05f, -9.05404668e-05f,
       -4.88125515e-05f, -5.1654456e-06f, 1.57750765e-05f, 1.69372706e-05f, 1.06104808e-05f,
       4.88030037e-06f, 1.764996e-06f, 5.18068134e-07f, 1.25572839e-07f, 2.54093884e-08f, 0.0f},
  };
  vf y = vpieces(vmin_fast(vset1(5.69f), vabs(x)), 2.63636374f, c);
  vf half = vmul(vset1(0.5f), x);
  return vfma(half, vcopysign(y, x), half);
}

// Its derivative Phi(x) + x phi(x), 2e-7 absolute, in the same way: 1/2 and an odd function. Far
// below zero it is what it is at -9: not zero, which would make NaN of an infinite gradient.
TY_INLINE vf vgelu_slope(vf x) {
  alignas(64) static const float c[6][16] = {
      {0.0f, 0.291358411f, 0.506332517f, 0.611754775f, 0.626206338f, 0.594186485f, 0.554428101f,
       0.525601208f, 0.510020375f, 0.503301799f, 0.500922203f, 0.500219285f, 0.500044525f,
       0.500007749f, 0.500001132f, 0.500000119f},
      {0.305855721f, 0.263309479f, 0.160973877f, 0.0534833856f, -0.0165727139f, -0.0407780744f,
       -0.0357251242f, -0.021726653f, -0.0102761397f, -0.00394127285f, -0.00125095679f,
       -0.000332401716f, -7.44812933e-05f, -1.41420624e-05f, -2.28328963e-06f, -3.14266885e-07f},
      {3.79955765e-07f, -0.0402237028f, -0.0571513958f, -0.0465888381f, -0.0228742529f,
       -0.00292250374f, 0.00617485633f, 0.00687688589f, 0.00440887222f, 0.00207990292f,
       0.000774303277f, 0.000234575957f, 5.87989452e-05f, 1.23188329e-05f, 2.17168872e-06f,
       3.23666967e-07f},
      {-0.0149845257f, -0.0104153184f, -0.000645284657f, 0.00678271195f, 0.00801089779f,
       0.00490515353f, 0.00134206098f, -0.000556797138f, -0.000904563814f, -0.000607808994f,
       -0.000282538938f, -0.000100946039f, -2.89040127e-05f, -6.77697517e-06f, -1.31791944e-06f,
       -2.14364121e-07f},
      {1.1604172e-05f, 0.00207310426f, 0.00241421722f, 0.00110665639f, -0.000383615203f,
       -0.000966001593f, -0.000713216956f, -0.000249093078f, 2.7123886e-05f, 9.15486817e-05f,
       6.40728831e-05f, 2.91088108e-05f, 9.92753212e-06f, 2.678893e-06f, 5.8702733e-07f,
       1.06055893e-07f},
      {0.000479464856f, 0.000275169936f, -0.000133901616f, -0.00033415982f, -0.000223737559f,
       -1.44535152e-05f, 9.22991821e-05f, 8.00929629e-05f, 3.06400034e-05f, -3.52329096e-07f,
       -7.87474073e-06f, -5.50119194e-06f, -2.37614881e-06f, -7.57113469e-07f, -1.88994875e-07f,
       -3.80520397e-08f},
  };
  vf a = vmin_fast(vset1(5.94f), vabs(x)), y = vpieces(a, 2.60869575f, c);
  y = vadd(vset1(0.5f), vcopysign(vselect(vgt(a, vset1(5.9f)), vset1(0.5f), y), x));
  return vselect(vlt(x, vset1(-5.9f)), vset1(-9.25e-18f), y);
}
#else
TY_INLINE vf vgelu(vf x) {
  vf half = vmul(vset1(0.5f), x);
  return vfma(half, verf(vmul(x, vset1(0.707106781f))), half);
}

// Its derivative Phi(x) + x phi(x), 2e-7 absolute. Beyond -9 it is what it is there: not zero,
// which would make NaN of an infinite gradient.
TY_INLINE vf vgelu_slope(vf x) {
  const vf near = vclip(x, -9.0f, 9.0f);
  const vf below = vfma(vset1(0.5f), verf(vmul(near, vset1(0.707106781f))), vset1(0.5f));
  const vf density = vmul(vset1(0.398942280f), vexp(vmul(vset1(-0.5f), vmul(near, near))));
  return vfma(near, density, below);
}
#endif

TY_INLINE vf vlogaddexp(vf a, vf b) {
  vf high = vmax(a, b), gap = vabs(vsub(a, b));
  gap = vselect(veq(a, b), vzero(), gap);  // also for equal infinities
  return vadd(high, vlog1p(vexp(vneg(gap))));
}

}  // namespace TY_ISA

// The float32 functions that users' losses may call: logarithms, sigmoids, powers and the like. They take
// every float32 number. Like the functions of math/scalar.h, on which they are built, they have no branches
// and propagate NaN. The stated errors are in ulp (units in the last place of the result), for processors
// with fused multiply-adds.
#pragma once

#include <cstdint>

#include "math/scalar.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

constexpr float kInfinity = __builtin_inff();

// Return the smaller and the larger of two numbers, or NaN if one of them is NaN. Of equal numbers, they
// return a.
template <class Number>
PL_FN Number minimum(Number a, Number b) {
  const Number least = b < a ? b : a;
  return b != b ? b : least;
}
template <class Number>
PL_FN Number maximum(Number a, Number b) {
  const Number most = b > a ? b : a;
  return b != b ? b : most;
}

// Returns 1, −1 or x itself, which is then 0 or NaN.
template <class Number>
PL_FN Number sign(Number x) {
  const Number below = x < 0 ? Number(-1) : x;
  return x > 0 ? Number(1) : below;
}

// Says whether a condition with this value holds: 0 and NaN are false.
template <class Number>
PL_FN bool is_true(Number x) {
  return (x < 0) | (x > 0);
}

// Returns a if the condition holds, otherwise b. Both are computed.
template <class Number>
PL_FN Number select(Number condition, Number a, Number b) {
  return is_true(condition) ? a : b;
}
PL_FN float select(bool condition, float a, float b) {
  return condition ? a : b;
}

// Return whether two conditions hold, and whether one of them does. Both are computed.
PL_FN bool both(bool a, bool b) {
  return a & b;
}
PL_FN bool either(bool a, bool b) {
  return a | b;
}

// Returns 1 if the condition holds, otherwise 0.
PL_FN float as_number(bool condition) {
  return condition ? 1.0f : 0.0f;
}

PL_FN float absolute(float x) {
#if defined(__CUDA_ARCH__)
  return bits_float(float_bits(x) & 0x7fffffff);
#else
  return __builtin_fabsf(x);
#endif
}
PL_FN double absolute(double x) {
  return __builtin_fabs(x);
}

// Returns y with the sign of x. y must either be positive, or 0, or have that sign already.
PL_FN float with_sign_of(float x, float y) {
  return bits_float(float_bits(y) | (float_bits(x) & INT32_MIN));
}

// Returns e^x − 1 within 3 ulp. As in exp_flushed(), half of the power of two is used, so that results up to
// the largest float32 number are correct.
PL_FN float expm1(float x) {
  const Reduced a = reduce(clip(x, kExponent.least_flushed, kExponent.most), 126);
  const float near = a.r + exp_tail(a.r);
  const float half_power = power_of_two(a.exponent);
  const float far = 2.0f * fma(half_power, near, half_power - 0.5f);
  return with_sign_of(x, a.n == 0.0f ? near : far);  // which matters for −0
}

// Splits x like split(), but x may also be subnormal.
PL_FN Split split_any(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const Split a = split(subnormal ? x * 8388608.0f : x);
  return {a.n - (subnormal ? 23.0f : 0.0f), a.f};
}

// Returns `ln`, the logarithm of x, if x is positive and finite. Otherwise returns the limit of the logarithm
// at x, or NaN.
PL_FN float log_or_limit(float x, float ln) {
  const float above = x < kInfinity ? ln : x;
  const float below = x == 0.0f ? -kInfinity : bits_float(0x7fc00000);
  return x > 0.0f ? above : below;
}

// Returns ln x within 3 ulp.
PL_FN float log(float x) {
  const Split a = split_any(x);
  return log_or_limit(x, log_of_split(a.n, a.f));
}

// Returns ln(1 + x) within 3 ulp for a finite x > −1. Adds what 1 + x loses when it is rounded to the split
// sum.
PL_FN float log1p_finite(float x) {
  const float sum = 1.0f + x;
  const float lost = x - (sum - 1.0f);
  const Split a = split(sum);
  // 2^−n, but 0 for the largest n, for which `lost` does not matter.
  const float scale = power_of_two(127 - static_cast<int32_t>(at_most(a.n, 127.0f)));
  return log_of_split(a.n, fma(lost, scale, a.f));
}

// Returns ln(1 + x) within 3 ulp.
PL_FN float log1p(float x) {
  return with_sign_of(x, log_or_limit(1.0f + x, log1p_finite(x)));  // which matters for −0
}

// Returns tanh x within 3 ulp.
PL_FN float tanh(float x) {
  const float e = expm1(-2.0f * absolute(x));  // in [−1, 0], so it cannot overflow
  return with_sign_of(x, -e / (2.0f + e));
}

// Returns the logistic function of x, 1/(1 + e^−x), within 4 ulp. Compilers compute the exponential and the
// quotient once for x and −x, of which derivatives need both.
PL_FN float sigmoid(float x) {
  const float e = exp(-absolute(x));
  const float above = 1.0f / (1.0f + e);
  return x < 0.0f ? e * above : above;
}

// Returns the logarithm of the logistic function of x, −ln(1 + e^−x), within 4 ulp.
PL_FN float logsigmoid(float x) {
  return at_most(x, 0.0f) - log1p_finite(exp(-absolute(x)));
}

// The sum of two float32 numbers. The second one is small and holds digits that the first one cannot.
struct Precise {
  float value, rest;
};

// Returns artanh(s)/s − 1 for |s| <= 0.172. ln(1 + f) equals 2·artanh(s) with s = f/(2 + f).
PL_FN float artanh_series(float s) {
  const float t = s * s;
  return t * fma(t, fma(t, fma(t, 0.111111111f, 0.142857143f), 0.2f), 0.333333333f);
}

// Returns ln x for a positive, finite x, with more digits than float32 has.
PL_FN Precise precise_log(float x) {
  const Split a = split_any(x);
  // s + s_rest is f/(2 + f).
  const float divisor = 2.0f + a.f;
  const float inverse = 1.0f / divisor;
  const float s = a.f * inverse;
  const float s_rest = fma(-s, a.f - (divisor - 2.0f), fma(-s, divisor, a.f)) * inverse;
  // ln 2 as in reduce(): n times the first part is exact, and it is 0 or larger than 2·s.
  const float whole = a.n * 0.693145752f;
  const float sum = fma(2.0f, s, whole);
  const float lost = fma(2.0f, s, whole - sum);
  const float rest = fma(a.n, 1.42860677e-6f, fma(2.0f, fma(s, artanh_series(s), s_rest), lost));
  const float value = sum + rest;
  return {value, rest - (value - sum)};
}

// Returns x^y like JavaScript's Math.pow(), within 4 ulp. In particular, x^0 is 1 for every x, and 1^Infinity
// and 1^NaN are NaN.
PL_FN float pow(float x, float y) {
  const float base = absolute(x);
  const Precise ln = precise_log(base);
  const float limit = log_or_limit(base, ln.value);
  // x^y is e^(product + rest).
  const float product = y * limit;
  const float bounded = clip(product, kExponent.least, kExponent.most);
  const float rest = fma(y, ln.rest, fma(y, limit, -product));
  const Reduced a = reduce(bounded, 126);
  // Far out, where the result is 0 or Infinity, `rest` may be NaN.
  const float r = bounded == product ? a.r + rest : a.r;
  const float magnitude = exp_of_remainder(bounded, r, a.exponent);

  // From 2^24 on, all float32 numbers are even.
  const float size = absolute(y);
  const float small = size < 16777216.0f ? size : 16777216.0f;
  const int32_t truncated = static_cast<int32_t>(small);
  const bool whole = static_cast<float>(truncated) == small;
  const uint32_t odd = whole ? static_cast<uint32_t>(truncated) << 31 : 0u;
  const float power = bits_float(float_bits(magnitude) | static_cast<int32_t>(odd & float_bits(x)));
  const bool undefined = (x < 0.0f) & (x > -kInfinity) & !whole;
  const float defined = undefined ? bits_float(0x7fc00000) : power;
  return y == 0.0f ? 1.0f : defined;
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

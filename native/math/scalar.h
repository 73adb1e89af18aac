// Scalar float32 functions for losses and estimators. They have no branches, so that loops over tokens
// vectorise. All of them propagate NaN.
//
// Compilers must not fuse a product and a sum on their own, because they would do so differently in every
// loop. Where fusing is worthwhile, a formula calls fma(). All builds for processors with that instruction
// therefore compute the same bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "math/target.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

PL_FN int32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_int(x);
#else
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
#endif
}

PL_FN float bits_float(int32_t bits) {
#if defined(__CUDA_ARCH__)
  return __int_as_float(bits);
#else
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

// Returns a·b + c. It is rounded once if the processor has an instruction for it (AVX2, AVX-512, NEON, GPUs),
// otherwise twice.
template <class Number>
PL_FN Number fma(Number a, Number b, Number c) {
#if defined(__CUDA_ARCH__)
  return ::fma(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__) || defined(POLICY_LOSS_FMA)
  if constexpr (sizeof(Number) == sizeof(float))
    return __builtin_fmaf(a, b, c);
  else
    return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// Adds x to *sum and returns the rounding error: the exact sum is the new *sum plus the returned number
// (Knuth's two-sum).
PL_FN double two_sum(double x, double* sum) {
  const double before = *sum;
  const double after = before + x;
  const double added = after - before;
  *sum = after;
  return (before - (after - added)) + (x - added);
}

// Return the larger and the smaller of two numbers. The result is NaN if x is NaN.
template <class Number>
PL_FN Number at_least(Number x, std::type_identity_t<Number> low) {
  return x < low ? low : x;
}
template <class Number>
PL_FN Number at_most(Number x, std::type_identity_t<Number> high) {
  return x > high ? high : x;
}

// Do the same, but may return either of two zeros. The bound must not be NaN. GPUs have instructions for
// them, which compilers do not find on their own.
PL_FN float bounded_below(float x, float low) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(low));
  return result;
#else
  return at_least(x, low);
#endif
}
PL_FN float bounded_above(float x, float high) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(high));
  return result;
#else
  return at_most(x, high);
#endif
}

PL_FN float clip(float x, float low, float high) {
  return at_most(at_least(x, low), high);
}

// Returns the derivative of clip(x, low, high) with respect to x: 1 within the bounds and on them, otherwise
// 0. For NaN it returns 0; the NaN then reaches the caller's product through its other factors. Callers
// multiply by the derivative, because a condition would keep GCC from vectorising PPO.
PL_FN float clip_derivative(float x, float low, float high) {
  return clip(x, low, high) == x ? 1.0f : 0.0f;
}

// Returns what a token adds to the count of tokens that fulfil the condition. GCC would branch around an
// addition that depends on the condition itself, and not vectorise the loop.
PL_FN float indicator(bool condition) {
  return condition ? 1.0f : 0.0f;
}

// Returns a·b, but 0 where one factor is 0 and the other infinite. So an advantage or a weight of 0 gives 0,
// even if the ratio overflows. It is NaN only if a factor is.
template <class Number>
PL_FN Number mul_no_nan(Number a, Number b) {
  const Number plain = a * b;
  const bool makes_nan = (plain != plain) & (a == a) & (b == b);
  return makes_nan ? Number(0) : plain;
}

// Bounds of the arguments of exponentials. For GCC 12 they are members of a weak object, because it then does
// not know their values: where it knows a bound, it compares and blends, and these are twice the instructions
// of a minimum or maximum. (It knows the value of a weak number.)
struct ExponentBounds {
  float least, least_flushed, most;
};
#if defined(__CUDACC__)
constexpr ExponentBounds kExponent = {-104.0f, -87.3f, 89.0f};
#else
extern __attribute__((weak)) const ExponentBounds kExponent = {-104.0f, -87.3f, 89.0f};
#endif

// The result of reduce(), which splits x into n·ln 2 + r with |r| <= ln 2 / 2.
struct Reduced {
  float r;
  int32_t exponent;  // n + bias in the low 9 bits; the other bits are arbitrary
  float n;
};

// Splits x into n·ln 2 + r, where n is a whole number, for |x| up to 104. `bias` is added to n in the stored
// exponent. It must be a compile-time constant.
PL_FN Reduced reduce(float x, int bias) {
  const float log2_e = 1.44269504f;
  // Adding 1.5·2^23 rounds to a whole number. The low bits of the sum then hold this number plus bias.
  const float round_to_integer = 12582912.0f + static_cast<float>(bias);
  // ln 2 as the sum of two numbers. The first ends in 9 zero bits, so that n·ln2_high is exact.
  const float ln2_high = 0.693145752f;
  const float ln2_low = 1.42860677e-6f;
  const float shifted = fma(x, log2_e, round_to_integer);
  const float n = shifted - round_to_integer;
  return {fma(-n, ln2_low, fma(-n, ln2_high, x)), float_bits(shifted), n};
}

// Returns scale·e^r for an r that reduce() returned. `scale` must be a constant power of two. The
// polynomial's error is 5e-9.
PL_FN float exp_of_reduced(float r, float scale) {
  float p = scale * 0.00139505381f;
  p = fma(p, r, scale * 0.00836891774f);
  p = fma(p, r, scale * 0.041666206f);
  p = fma(p, r, scale * 0.166665182f);
  p = fma(p, r, scale * 0.5f);
  p = fma(p, r, scale);
  return fma(p, r, scale);
}

// Returns the power of two whose biased exponent in float32 is `exponent` + `more`: 127 gives 1, and 0 gives
// 0. It adds unsigned numbers, because the exponent that reduce() returns for NaN would overflow int32_t.
PL_FN float power_of_two(int32_t exponent, uint32_t more = 0) {
  return bits_float(static_cast<int32_t>((static_cast<uint32_t>(exponent) << 23) + (more << 23)));
}

// Returns e^x within 2 ulp (units in the last place) for |x| <= 87. It is faster than exp_flushed() and
// exp().
PL_FN float exp_bounded(float x) {
  const Reduced a = reduce(x, 127);
  return exp_of_reduced(a.r, 1.0f) * power_of_two(a.exponent);
}

// Returns e^x within 2 ulp (units in the last place), but 0 for results below 1.7e-38. Losses use it because
// such small results do not matter to them. The polynomial is scaled by 2, so that the power of two is only
// half as large. Float32 can then represent it even if e^x is the largest float32 number or overflows to
// Infinity.
PL_FN float exp_flushed(float x) {
  const Reduced a = reduce(clip(x, kExponent.least_flushed, kExponent.most), 126);
  return exp_of_reduced(a.r, 2.0f) * power_of_two(a.exponent);
}

// The least exponent for which exp2_of_product() is defined. The power is then 0.
#if defined(__CUDA_ARCH__)
constexpr float kLeastExponent = -127.0f;
#else
constexpr float kLeastExponent = -126.0f;
#endif

// Returns scale·2^(x·factor) for x·factor from kLeastExponent to 127, but 0 at the lower end. 2^0 is
// exactly 1. The power's error is below 3 ulp, or 46 ulp on processors without fused multiply-adds. It needs
// fewer instructions than exp_flushed(), above all if `scale` is constant in a loop. GPUs have an instruction
// for the power. There, the product is rounded, which adds a relative error of up to 4e-8 times its size.
PL_FN float exp2_of_product(float x, float factor, float scale) {
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * factor));
  return scale * power;
#else
  const float round_to_integer = 12582912.0f + 126.0f;  // as in reduce()
  const float shifted = fma(x, factor, round_to_integer);
  const float r = fma(x, factor, -(shifted - round_to_integer));
  const float twice = 2.0f * scale;
  float p = twice * 0.00132647273f;
  p = fma(p, r, twice * 0.00967151299f);
  p = fma(p, r, twice * 0.0555073358f);
  p = fma(p, r, twice * 0.240222424f);
  p = fma(p, r, twice * 0.693147004f);
  p = fma(p, r, twice);
  return p * power_of_two(float_bits(shifted));
#endif
}

// Returns 2^(x·factor) for |x·factor| <= 126, with a relative error below 3e-6 on processors with fused
// multiply-adds. That is a thousandth of the rounding error of a bfloat16 number. It multiplies less often
// than exp2_of_product(): it adds the whole part of the exponent to the stored one.
PL_FN float short_exp2_of_product(float x, float factor) {
  const float round_to_integer = 12582912.0f;  // as in reduce()
  const float shifted = fma(x, factor, round_to_integer);
  const float r = fma(x, factor, -(shifted - round_to_integer));
  float p = 0.00958285294f;
  p = fma(p, r, 0.0559064262f);
  p = fma(p, r, 0.240240991f);
  p = fma(p, r, 0.693124175f);
  p = fma(p, r, 1.0f);
  return bits_float(static_cast<int32_t>(static_cast<uint32_t>(float_bits(p)) +
                                         (static_cast<uint32_t>(float_bits(shifted)) << 23)));
}

// Returns e^x, where r is the remainder that reduce(x, 126) returned, for x in [−104, 89]. If x is so small
// that the power of two would not be a normal number, multiplies by two factors instead of one, so that
// subnormal results are correct. A caller may add a small number to the remainder to get e^(x + this number).
PL_FN float exp_of_remainder(float x, float r, int32_t exponent) {
  const bool low = x < -86.5f;
  return exp_of_reduced(r, 2.0f) * power_of_two(exponent, low ? 64u : 0u) * (low ? 5.42101086e-20f : 1.0f);
}

// Returns e^x within 2 ulp (units in the last place) for every float32 x.
PL_FN float exp(float x) {
  const float bounded = clip(x, kExponent.least, kExponent.most);
  const Reduced a = reduce(bounded, 126);
  return exp_of_remainder(bounded, a.r, a.exponent);
}

// Returns e^r − 1 − r for an r that reduce() returned, accurate also near 0.
PL_FN float exp_tail(float r) {
  float p = 1.99076356e-4f;
  p = fma(p, r, 1.39336882e-3f);
  p = fma(p, r, 8.33328627e-3f);
  p = fma(p, r, 4.1666463e-2f);
  p = fma(p, r, 1.66666672e-1f);
  p = fma(p, r, 0.5f);
  return p * (r * r);
}

// Returns e^x as exp_flushed() does, and also the residual e^x − 1 − x, which KL estimators need. Near 0, a
// separate series gives the residual, because the subtraction would lose its digits.
struct Exponential {
  float value, residual;
};
PL_FN Exponential exp_and_residual(float x) {
  const Reduced a = reduce(clip(x, kExponent.least_flushed, kExponent.most), 126);
  const float tail = exp_tail(a.r);
  const float whole = fma(tail + a.r, 2.0f, 2.0f) * power_of_two(a.exponent);
  return {whole, a.n == 0.0f ? tail : whole - 1.0f - x};
}
PL_FN float exp_residual(float x) {
  return exp_and_residual(x).residual;
}
PL_FN float exp_with_residual(float x) {
  return exp_and_residual(x).value;
}

// The result of split(), which splits x into 2^n·(1 + f).
struct Split {
  float n, f;
};

// Splits a positive, normal x into 2^n·(1 + f), where 1 + f is in [√½, √2). For other x, such as NaN, the
// result is finite but arbitrary.
PL_FN Split split(float x) {
  const int32_t sqrt_half = 0x3f3504f3;
  // Subtracts unsigned numbers, because the signed difference would overflow for a negative x.
  const int32_t bits =
      static_cast<int32_t>(static_cast<uint32_t>(float_bits(x)) - static_cast<uint32_t>(sqrt_half));
  const float n = static_cast<float>(bits >> 23);
  return {n, bits_float((bits & 0x7fffff) + sqrt_half) - 1.0f};
}

// Returns ln(2^n·(1 + f)) for numbers that split() returned. The polynomial's relative error is 3e-8. A
// series in f/(2 + f) would have fewer terms, but its division alone takes longer than this function.
PL_FN float log_of_split(float n, float f) {
  float p = 0.0870043486f;
  p = fma(p, f, -0.142674789f);
  p = fma(p, f, 0.149147645f);
  p = fma(p, f, -0.16577585f);
  p = fma(p, f, 0.199630648f);
  p = fma(p, f, -0.250013381f);
  p = fma(p, f, 0.333339095f);
  return fma(n, 0.693147181f, fma(f * f, fma(p, f, -0.5f), f));
}

// Returns ln x for a positive, normal x, within 3 ulp (units in the last place).
PL_FN float log_positive(float x) {
  const Split a = split(x);
  return log_of_split(a.n, a.f);
}

// Returns z − ln(1 + z) for z > −1/2, without cancellation near 0.
PL_FN float log1p_residual(float z) {
  const float s = z / (2.0f + z);
  const float t = s * s;
  float series = fma(t, 0.0769230769f, 0.0909090909f);
  series = fma(t, series, 0.111111111f);
  series = fma(t, series, 0.142857143f);
  series = fma(t, series, 0.2f);
  series = fma(t, series, 0.333333333f);
  return z < 0.5f ? s * fma(-2.0f * t, series, z) : z - log_positive(1.0f + z);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Scalar functions of float32 that losses and estimators are written in. Branch-free, so that a loop over
// tokens vectorises; every one passes NaN on.
#pragma once

#include <cstdint>
#include <cstring>

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

// min and max that keep a NaN in x.
PL_FN float at_least(float x, float low) {
  return x < low ? low : x;
}
PL_FN float at_most(float x, float high) {
  return x > high ? high : x;
}

PL_FN float clip(float x, float low, float high) {
  return at_most(at_least(x, low), high);
}

// d clip(x) / dx: 1 inside and on the bounds, 0 outside.
PL_FN float clip_derivative(float x, float low, float high) {
  return x < low || x > high ? 0.0f : 1.0f;
}

PL_FN float indicator(bool condition) {
  return condition ? 1.0f : 0.0f;
}

// e^x in pieces: e^x = (1 + r + tail)·scale·scale_rest with x = n·ln 2 + r, |r| <= ln2/2, and tail a
// polynomial in r. 2^n comes as two factors, so that results down to the smallest subnormal and up to
// Infinity come out by themselves.
struct ExpPieces {
  float n, r, tail, scale, scale_rest;
};

PL_FN ExpPieces exp_pieces(float x) {
  const float log2_e = 1.44269504f;
  const float round_to_integer =
      12582912.0f;  // 1.5·2^23: adding it leaves the rounded integer in the low bits
  // ln 2 in two parts; the first has 9 trailing zero bits, hence n·ln2_high is exact.
  const float ln2_high = 0.693145752f;
  const float ln2_low = 1.42860677e-6f;

  const float bounded = clip(x, -104.0f, 89.0f);
  const float shifted = bounded * log2_e + round_to_integer;
  const float n = shifted - round_to_integer;
  const float r = (bounded - n * ln2_high) - n * ln2_low;

  float p = 1.98756915e-4f;
  p = p * r + 1.39819995e-3f;
  p = p * r + 8.33345191e-3f;
  p = p * r + 4.16657959e-2f;
  p = p * r + 1.66666655e-1f;
  p = p * r + 5.00000012e-1f;

  const int32_t exponent = float_bits(shifted) - 0x4b400000;
  const int32_t half = exponent >> 1;
  return {n, r, p * (r * r), bits_float((half + 127) << 23), bits_float((exponent - half + 127) << 23)};
}

// e^x over all float32, below 2 ulp.
PL_FN float exp(float x) {
  const ExpPieces e = exp_pieces(x);
  return (e.tail + e.r + 1.0f) * e.scale * e.scale_rest;
}

// e^x − 1 − x without the cancellation near 0, where KL estimators live: there it is the tail itself.
PL_FN float exp_residual(float x) {
  const ExpPieces e = exp_pieces(x);
  const float whole = (e.tail + e.r + 1.0f) * e.scale * e.scale_rest;
  return e.n == 0.0f ? e.tail : whole - 1.0f - x;
}

// ln x of a positive, normal x, below 2 ulp but near 1, where the error is 2 ulp of 1.
PL_FN float log_positive(float x) {
  const int32_t sqrt_half = 0x3f3504f3;
  const int32_t bits = float_bits(x) - sqrt_half;
  const float n = static_cast<float>(bits >> 23);
  const float f = bits_float((bits & 0x7fffff) + sqrt_half) - 1.0f;  // x = 2^n·(1 + f)
  // ln(1 + f) = 2·artanh(s), an odd series in s, |s| <= 0.172.
  const float s = f / (2.0f + f);
  const float t = s * s;
  const float series = t * (0.333333333f + t * (0.2f + t * (0.142857143f + t * 0.111111111f)));
  return n * 0.693147181f + 2.0f * (s + s * series);
}

// z − ln(1 + z) for z > −1/2, without the cancellation near 0.
PL_FN float log1p_residual(float z) {
  const float s = z / (2.0f + z);
  const float t = s * s;
  const float series =
      0.333333333f +
      t * (0.2f + t * (0.142857143f + t * (0.111111111f + t * (0.0909090909f + t * 0.0769230769f))));
  return z < 0.5f ? s * (z - 2.0f * t * series) : z - log_positive(1.0f + z);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

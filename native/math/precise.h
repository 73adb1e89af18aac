// The exponential in float64. That of the C library has other bits on other systems, so the results of builds
// for different systems would differ.
#pragma once

#include <cmath>

#include "math/scalar.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Returns 2^exponent for an exponent from −1022 to 1023.
PL_FN double double_power_of_two(int64_t exponent) {
  const int64_t bits = (exponent + 1023) << 52;
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Returns e^x within 2 ulp (units in the last place) for every float64 x. GPUs use CUDA's exponential.
PL_FN double precise_exp(double x) {
#if defined(__CUDA_ARCH__)
  return ::exp(x);
#else
  constexpr double log2_e = 0x1.71547652b82fep0;
  // ln 2 as a sum. Products of the first part with whole numbers up to 2^21 are exact.
  constexpr double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
  // Adding this number to a smaller one rounds that one to a whole number.
  constexpr double rounding = 0x1.8p52;
  // e^-746 is 0 and e^710 is Infinity. NaN stays NaN.
  const double bounded = x < -746.0 ? -746.0 : x > 710.0 ? 710.0 : x;
  const double powers = fma(bounded, log2_e, rounding) - rounding;
  const double r = fma(-powers, ln2_low, fma(-powers, ln2_high, bounded));
  // The series of e^r for |r| <= ln 2 / 2. Its next term is below 2^-57.
  double p = 1.0 / 6227020800.0;
  p = fma(p, r, 1.0 / 479001600.0);
  p = fma(p, r, 1.0 / 39916800.0);
  p = fma(p, r, 1.0 / 3628800.0);
  p = fma(p, r, 1.0 / 362880.0);
  p = fma(p, r, 1.0 / 40320.0);
  p = fma(p, r, 1.0 / 5040.0);
  p = fma(p, r, 1.0 / 720.0);
  p = fma(p, r, 1.0 / 120.0);
  p = fma(p, r, 1.0 / 24.0);
  p = fma(p, r, 1.0 / 6.0);
  p = fma(p, r, 0.5);
  p = fma(p * r, r, r) + 1.0;
  // Two factors, because 2^-1075 and 2^1024 are not float64 numbers.
  const int64_t exponent = powers == powers ? static_cast<int64_t>(powers) : 0;
  const int64_t half = exponent / 2;
  return p * double_power_of_two(half) * double_power_of_two(exponent - half);
#endif
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

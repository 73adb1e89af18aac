// Exact conversions of float16 and bfloat16 to float32, without branches.
#pragma once

#include <cstdint>

#include "math/scalar.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

PL_FN float float_of_bfloat16(uint16_t x) {
  return bits_float(static_cast<int32_t>(x) << 16);
}

// Use the processor's conversion instruction if the compiler can generate it.
#if defined(__CUDA_ARCH__)
PL_FN float float_of_half(uint16_t x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x));
  return result;
}
#elif defined(__clang__) && !defined(__CUDACC__) && (defined(__F16C__) || defined(__aarch64__))
PL_FN float float_of_half(uint16_t x) {
  _Float16 half;
  memcpy(&half, &x, sizeof half);
  return static_cast<float>(half);
}
#else
// Moves the exponent and the mantissa to their places in a float32. A multiplication by 2^112 then corrects
// the exponent's bias, which also works for subnormals. Infinity and NaN get the largest exponent again.
PL_FN float float_of_half(uint16_t x) {
  const int32_t magnitude = static_cast<int32_t>(x & 0x7fff) << 13;
  const int32_t sign = static_cast<int32_t>(x & 0x8000) << 16;
  const int32_t rebased = float_bits(bits_float(magnitude) * bits_float(0x77800000));
  const int32_t special = magnitude >= 0x0f800000 ? 0x7f800000 : 0;
  return bits_float(rebased | special | sign);
}
#endif

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Conversions between float32 and the 16-bit formats float16 and bfloat16, without branches. Conversions to
// float32 are exact. Those to 16 bits round to the nearest number, and to the even one of two that are
// equally near.
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

#if defined(__CUDA_ARCH__)
PL_FN uint16_t bfloat16_of_float(float x) {
  uint16_t result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
}

PL_FN uint16_t half_of_float(float x) {
  uint16_t result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
}
#else
// Rounds to bfloat16 and returns the result in the upper half of the bits; the lower half is arbitrary. A NaN
// stays a NaN if its low 15 bits are 0, as those of NaNs are that arithmetic returns for 16-bit inputs.
PL_FN uint32_t bfloat16_in_upper_half(float x) {
  const uint32_t bits = static_cast<uint32_t>(float_bits(x));
  return bits + 0x7fff + (bits >> 16 & 1);
}
PL_FN uint16_t bfloat16_of_float(float x) {
  return static_cast<uint16_t>(bfloat16_in_upper_half(x) >> 16);
}

// Rounds to float16. Every NaN becomes a quiet NaN with its sign.
#if defined(__clang__) && !defined(__CUDACC__) && (defined(__F16C__) || defined(__aarch64__))
PL_FN uint16_t half_of_float(float x) {
  const float quiet = bits_float((float_bits(x) & static_cast<int32_t>(0x80000000)) | 0x7fc00000);
  const _Float16 half = static_cast<_Float16>(x == x ? x : quiet);
  uint16_t result;
  memcpy(&result, &half, sizeof result);
  return result;
}
#else
PL_FN uint16_t half_of_float(float x) {
  const uint32_t bits = static_cast<uint32_t>(float_bits(x));
  const uint32_t magnitude = bits & 0x7fffffff;
  // 65536, from which on all numbers become Infinity.
  const uint32_t bounded = magnitude < 0x47800000 ? magnitude : 0x47800000;
  const uint32_t normal = ((bounded + 0xfff + (bounded >> 13 & 1)) >> 13) - 0x1c000;
  // From 1/2 to 1, the distance of float32 numbers is that of subnormal float16 numbers.
  const float shifted = bits_float(static_cast<int32_t>(bounded)) + 0.5f;
  const uint32_t subnormal = static_cast<uint32_t>(float_bits(shifted)) - 0x3f000000;
  const uint32_t rounded = bounded < 0x38800000 ? subnormal : normal;
  return static_cast<uint16_t>((x == x ? rounded : 0x7e00) | (bits >> 16 & 0x8000));
}
#endif
#endif

// Round two numbers to 16 bits. The first one becomes the lower half of the result.
PL_FN uint32_t bfloat16_pair_of_floats(float first, float second) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
  return result;
#else
  return bfloat16_of_float(first) | static_cast<uint32_t>(bfloat16_of_float(second)) << 16;
#endif
}
PL_FN uint32_t half_pair_of_floats(float first, float second) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
  return result;
#else
  return half_of_float(first) | static_cast<uint32_t>(half_of_float(second)) << 16;
#endif
}

// Rounds any float32 number to bfloat16. Every NaN becomes the same quiet NaN.
PL_FN uint16_t bfloat16_of_any(float x) {
  return bfloat16_of_float(x == x ? x : bits_float(0x7fc00000));
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

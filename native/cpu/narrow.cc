#include "cpu/narrow.h"

#include "cpu/target.h"
#include "cpu/tile.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace policy_loss::inline POLICY_LOSS_TARGET {
namespace {

// Rounds kSumLanes numbers to bfloat16 with an instruction of AVX512_BF16. Returns false and stores nothing
// if one of them is subnormal or NaN, because the instruction would make a zero of the former and keep the
// payload of the latter. The processor must have the instruction. It is inline assembly because compilers
// allow its intrinsic only in functions that they compile for such processors.
#if defined(__AVX512F__)
PL_FN bool round_vectors(const float* in, uint16_t* out) {
  static_assert(kSumLanes * sizeof *out == sizeof(__m512i));
  constexpr int kSubnormalOrNan = 0xa1;
  const __m512 first = _mm512_loadu_ps(in), second = _mm512_loadu_ps(in + kSumLanes / 2);
  if (_mm512_kor(_mm512_fpclass_ps_mask(first, kSubnormalOrNan),
                 _mm512_fpclass_ps_mask(second, kSubnormalOrNan)) != 0)
    return false;
  __m512i rounded;
  __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded) : "v"(first), "v"(second));
  _mm512_storeu_si512(out, rounded);
  return true;
}
#else
PL_FN bool round_vectors(const float*, uint16_t*) {
  return false;
}
#endif

// Converts n numbers, a multiple of kBlock, to 16 bits. Prefetches the memory of as many after them, which
// the caller will probably convert next.
__attribute__((noinline)) void narrow_blocks(const float* in, int n, DType dtype, uint16_t* out) {
  for (int at = n; at < 2 * n; at += kSumLanes) __builtin_prefetch(out + at, 1, 2);
  if (dtype == DType::kFloat16) {
    for (int at = 0; at < n; at += kSumLanes) {
      PL_FOR_LANES
      for (int l = 0; l < kSumLanes; ++l) out[at + l] = half_of_float(in[at + l]);
    }
  } else {
    const bool has_instruction = cpu::has_avx512_bf16();
    for (int at = 0; at < n; at += kSumLanes) {
      if (has_instruction && round_vectors(in + at, out + at)) continue;
      PL_FOR_LANES
      for (int l = 0; l < kSumLanes; ++l) out[at + l] = bfloat16_of_any(in[at + l]);
    }
  }
}

}  // namespace

void store_numbers(const float* in, int n, DType dtype, void* out, int64_t first) {
  if (dtype == DType::kFloat32) {
    memcpy(static_cast<float*>(out) + first, in, n * sizeof(float));
    return;
  }
  uint16_t* const bits = static_cast<uint16_t*>(out) + first;
  const int whole = n / kBlock * kBlock;
  narrow_blocks(in, whole, dtype, bits);
  if (whole == n) return;
  alignas(64) uint16_t last[kBlock];
  narrow_blocks(in + whole, kBlock, dtype, last);
  memcpy(bits + whole, last, (n - whole) * sizeof *bits);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

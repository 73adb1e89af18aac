#include "cpu/narrow.h"

#include "cpu/tile.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {
namespace {

// Converts n numbers, a multiple of kGranule, to 16 bits. Prefetches the memory of as many after them, which
// the caller will probably convert next.
__attribute__((noinline)) void narrow_granules(const float* in, int n, DType dtype, uint16_t* out) {
  for (int at = n; at < 2 * n; at += kSumLanes) __builtin_prefetch(out + at, 1, 2);
  if (dtype == DType::kFloat16) {
    for (int at = 0; at < n; at += kSumLanes) {
      PL_FOR_LANES
      for (int l = 0; l < kSumLanes; ++l) out[at + l] = half_of_float(in[at + l]);
    }
  } else {
    for (int at = 0; at < n; at += kSumLanes) {
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
  const int whole = n / kGranule * kGranule;
  narrow_granules(in, whole, dtype, bits);
  if (whole == n) return;
  alignas(64) uint16_t last[kGranule];
  narrow_granules(in + whole, kGranule, dtype, last);
  memcpy(bits + whole, last, (n - whole) * sizeof *bits);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Finds and reports inputs of advantage functions that are NaN or infinite.
#pragma once

#include "cuda/warp.cuh"

namespace policy_loss::cuda {

__device__ __forceinline__ bool is_finite(float x) {
  return x - x == 0.0f;
}

// Returns four bits: bit j is set if value j of the quad is not finite.
__device__ __forceinline__ unsigned non_finite_bits(const Quad& quad) {
  // x − x is 0 unless x is not finite.
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kQuad; ++j) sum += quad[j] - quad[j];
  if (sum == 0.0f) return 0;
  unsigned bits = 0;
#pragma unroll
  for (int j = 0; j < kQuad; ++j) bits |= is_finite(quad[j]) ? 0u : 1u << j;
  return bits;
}

// Records that an input value in this row is not finite. If several are recorded, the host gets the one in
// the first row.
__device__ __forceinline__ void report_non_finite(const AdvantagePass& pass, NonFiniteInput input,
                                                  int64_t row) {
  const unsigned long long key = 8ull * static_cast<unsigned long long>(row) + static_cast<unsigned>(input);
  atomicMax(&pass.state->non_finite, ~key);
}

}  // namespace policy_loss::cuda

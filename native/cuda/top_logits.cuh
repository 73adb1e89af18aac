// The kernel that finds the tokens with the largest logits. A block computes one row at a time.
//
// No two keys of a row (program/select.h) are equal, so the largest logits are those whose keys reach a
// bound. The block finds the bound digit by digit. For each digit, it reads the row and counts the keys that
// have the same digits before it.
#pragma once

#include "cuda/warp.cuh"
#include "logits/call.h"
#include "program/select.h"

namespace policy_loss::cuda {

constexpr int kKeyBits = 64, kDigitBits = 8;
constexpr int kDigitBins = 1 << kDigitBits;

struct TopLogitsPass {
  LogitsCall call;  // its logits and its targets are in memory of the device
  uint64_t* keys;   // [rows][top_length]
  int32_t* ids;     // [rows][top_length]
};

// Calls visit(key) for each logit of a row that is not NaN. The threads of the block share the logits.
template <class Visit>
__device__ __forceinline__ void for_keys(const LogitsCall& call, int64_t row, Visit visit) {
  const char* const first = static_cast<const char*>(call.data) + row * call.row_stride * size_of(call.dtype);
  const ColumnView logits{first, call.dtype};
  for (int64_t id = threadIdx.x; id < call.vocabulary; id += kThreads) {
    const float logit = load_one(logits, id);
    if (logit == logit) visit(key_of(logit, static_cast<uint32_t>(id)));
  }
}

// Returns a bound that the `count` largest keys of a row reach, and no other key. It is 0 if the row has
// fewer keys. All threads of the block must call it together.
__device__ __forceinline__ uint64_t least_key(const LogitsCall& call, int64_t row, int64_t count) {
  __shared__ unsigned bins[kDigitBins];
  __shared__ uint64_t known;  // the digits that were found; the others are 0
  __shared__ int64_t left;    // how many keys with these digits are wanted
  __shared__ bool is_found;
  if (threadIdx.x == 0) {
    known = 0;
    left = count;
  }
  for (int shift = kKeyBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int bin = threadIdx.x; bin < kDigitBins; bin += kThreads) bins[bin] = 0;
    __syncthreads();
    const uint64_t digits = known >> shift >> kDigitBits;
    for_keys(call, row, [&](uint64_t key) {
      if (key >> shift >> kDigitBits == digits) atomicAdd(bins + (key >> shift & (kDigitBins - 1)), 1u);
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = kDigitBins - 1;
      while (bin > 0 && bins[bin] < left) left -= bins[bin--];
      known |= static_cast<uint64_t>(bin) << shift;
      is_found = bins[bin] <= left;
    }
    __syncthreads();
    if (is_found) break;
  }
  return known;
}

__global__ void __launch_bounds__(kThreads) top_logits_kernel(TopLogitsPass pass) {
  __shared__ unsigned found;
  const int64_t count = pass.call.top_length;
  for (int64_t row = blockIdx.x; row < pass.call.rows; row += gridDim.x) {
    uint64_t* const keys = pass.keys + row * count;
    int32_t* const ids = pass.ids + row * count;
    if (threadIdx.x == 0) found = 0;
    if (pass.call.targets[row] != kIgnoredTarget) {
      const uint64_t least = least_key(pass.call, row, count);
      for_keys(pass.call, row, [&](uint64_t key) {
        if (key < least) return;
        const unsigned at = atomicAdd(&found, 1u);
        if (at < count) keys[at] = key;  // the caller may change the logits during the call
      });
    }
    __syncthreads();
    const int64_t n = min(static_cast<int64_t>(found), count);
    for (int64_t i = threadIdx.x; i < count; i += kThreads) {
      if (i >= n) {
        ids[i] = -1;
        continue;
      }
      const uint64_t key = __ldcg(keys + i);
      int64_t larger = 0;
      for (int64_t j = 0; j < n; ++j) larger += __ldcg(keys + j) > key ? 1 : 0;
      ids[larger] = static_cast<int32_t>(place_of(key));
    }
    __syncthreads();
  }
}

}  // namespace policy_loss::cuda

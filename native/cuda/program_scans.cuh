// Computes the scans of a program along a row (program/program.h), with one warp per row. The lanes add up
// the tokens one after another, as the CPU engine does, so the sums have the same bits.
#pragma once

#include "cuda/program_numbers.cuh"

namespace policy_loss::cuda {

// The scanned values of a row's tokens, and the row's mask.
struct ScannedRow {
  float* values;
  const uint8_t* mask;
  int64_t length;
};

// Visits the tokens of a row in groups of one per lane, from the first token on or from the last one. Calls
// visit(value, live) for each group; a token that does not exist counts as masked. Stores the number that
// visit() returns for the lane's token.
template <class Visit>
__device__ __forceinline__ void replace_tokens(const ScannedRow& row, bool forwards, Visit visit) {
  for (int64_t from = 0; from < row.length; from += kWarp) {
    const int64_t at = from + threadIdx.x % kWarp;
    const int64_t token = forwards ? at : row.length - 1 - at;
    const bool exists = at < row.length;
    const bool live = exists && row.mask[token] != 0;
    const float result = visit(live ? row.values[token] : 0.0f, live);
    if (exists) row.values[token] = result;
  }
  __syncwarp();  // the lanes may read the values of other lanes' tokens next
}

// Replaces the values with their running sums.
__device__ __forceinline__ void running_sum(const ScannedRow& row, double decay, bool forwards) {
  double sum = 0;
  replace_tokens(row, forwards, [&](float value, bool) {
    double own = 0;
#pragma unroll 8
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      sum = static_cast<double>(__shfl_sync(kAllLanes, value, lane)) + decay * sum;
      if (threadIdx.x % kWarp == lane) own = sum;
    }
    return static_cast<float>(own);
  });
}

// Replaces the value of each unmasked token with the sum over the contiguous run of unmasked tokens around
// it.
__device__ __forceinline__ void sum_runs(const ScannedRow& row) {
  double sum = 0;
  replace_tokens(row, true, [&](float value, bool live) {
    const unsigned all = __ballot_sync(kAllLanes, live);
    double own = 0;
#pragma unroll 8
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      const double next = sum + static_cast<double>(__shfl_sync(kAllLanes, value, lane));
      sum = (all >> lane & 1) != 0 ? next : 0.0;
      if (threadIdx.x % kWarp == lane) own = sum;
    }
    return static_cast<float>(own);
  });
  // Now the last token of each run has the run's sum. Backwards, it is passed on to the others.
  float total = 0;
  bool in_run = false;
  replace_tokens(row, false, [&](float value, bool live) {
    const unsigned all = __ballot_sync(kAllLanes, live);
    float own = 0;
#pragma unroll 8
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      const float last = __shfl_sync(kAllLanes, value, lane);
      if (!in_run) total = last;
      in_run = (all >> lane & 1) != 0;
      if (threadIdx.x % kWarp == lane) own = total;
    }
    return own;
  });
}

__device__ __forceinline__ void scan(Op op, double decay, const ScannedRow& row) {
  if (op == Op::k_run_sum)
    sum_runs(row);
  else
    running_sum(row, decay, op == Op::k_prefix_sum);
}

}  // namespace policy_loss::cuda

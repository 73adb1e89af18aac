// Computes the compiled token segments (program/compiled.h) for a lane's four tokens, one after the other.
// The results have the bits of the interpreter's.
#pragma once

#include "cuda/program_tokens.cuh"
#include "program/segments.h"

namespace policy_loss::cuda {

// The partial result of a reduction over a row: a lane's, or that of a tile of the row.
union Partial {
  double sum;
  float single;  // of the lanes of row_sum_single
  Extreme<float> extreme;
};

// The numbers of token j, as the function of a segment reads them.
struct TokenReader {
  const CompiledTokens& in;
  int j;

  __device__ __forceinline__ float column(int c) const { return in.column(c, j); }
  __device__ __forceinline__ float scanned(int k) const { return in.scanned_at(k, j); }
  __device__ __forceinline__ float uniform(int k) const { return in.uniforms[k].single; }
  __device__ __forceinline__ bool is_at(int, int k) const { return of_position(Op::k_is_at, k) != 0.0f; }
  __device__ __forceinline__ bool is_up_to(int, int k) const {
    return of_position(Op::k_is_up_to, k) != 0.0f;
  }
  __device__ __forceinline__ float draw(int, int k) const { return of_position(Op::k_draw, k); }

  __device__ __forceinline__ float of_position(Op op, int k) const {
    return value_of_position(op, in.uniforms[k].precise, in.row, in.tokens.position(j));
  }
  // Returns x if the token is unmasked, otherwise 0.
  __device__ __forceinline__ float live(float x) const { return in.is_live(j) ? x : 0.0f; }
};

// Takes the outputs of a segment.
struct OutputTaker : TokenReader {
  float* sums;   // of the losses, then of each metric's terms
  float* grads;  // token j's gradient is number j * kWarp

  __device__ __forceinline__ void loss(float x) const { sums[0] += live(x); }
  __device__ __forceinline__ void metric(int k, float x) const { sums[1 + k] += live(x); }
  __device__ __forceinline__ void loss_and_metric(int k, float x) const { metric(k, x); }
  __device__ __forceinline__ void grad(float x, float factor) const { grads[j * kWarp] = x * factor; }
  __device__ __forceinline__ void row_sum(int, float) const {}
  __device__ __forceinline__ void row_sum_single(int, float) const {}
  __device__ __forceinline__ void row_operand(Op, int, float) const {}
  __device__ __forceinline__ void scan(Op, int, float) const {}
};

// Takes the operands of a segment's reductions and scans.
struct ReductionTaker : TokenReader {
  double* sums;
  float* singles;
  Partial* results;  // the lane's results of reduction n are at results[n * kThreads]
  int gathered;      // on lane n, the index of what reduction n gathers

  __device__ __forceinline__ void loss(float) const {}
  __device__ __forceinline__ void metric(int, float) const {}
  __device__ __forceinline__ void loss_and_metric(int, float) const {}
  __device__ __forceinline__ void grad(float, float) const {}
  __device__ __forceinline__ void row_sum(int n, float x) const { sums[n] += live(x); }
  __device__ __forceinline__ void row_sum_single(int n, float x) const { singles[n] += live(x); }
  // Adds x to a lane's smallest or largest value, or stores and counts what row_gather stores.
  __device__ __forceinline__ void row_operand(Op op, int n, float x) const {
    Partial& to = results[n * kThreads];
    const int64_t position = in.tokens.position(j);
    if (op == Op::k_row_gather) {
      const int index = __shfl_sync(kAllLanes, gathered, n);
      if (!in.is_live(j)) return;
      in.gathered[index * in.stride + position] = x;
      to.sum += 1;
    } else if (in.is_live(j)) {
      Extreme<float> extreme = to.extreme;
      extreme.add(program::is_largest(op), x, static_cast<int>(position));
      to.extreme = extreme;
    }
  }
  __device__ __forceinline__ void scan(Op, int k, float x) const {
    if (in.is_live(j)) in.scanned[k * in.stride + in.tokens.position(j)] = x;
  }
};

// Computes the outputs of a compiled segment. Adds the losses to sums[0] and the terms of metric k to
// sums[(1 + k) * kThreads]. Stores the gradient of token j in grads[j * kWarp].
__device__ __forceinline__ void compute_outputs(int index, const CompiledTokens& in, float* sums,
                                                float* grads) {
  program::with_segment(index, [&]<int at>(program::Index<at> segment) {
    constexpr int count = 1 + program::kShape<at>.metrics;
    float local[count];
    for (int k = 0; k < count; ++k) local[k] = sums[k * kThreads];
    PL_NO_UNROLL
    for (int j = 0; j < kQuad; ++j) {
      OutputTaker io{{in, j}, local, grads};
      compute_segment(segment, io);
    }
    // The loss that is also a metric has no sum of its own.
    constexpr int loss = 1 + program::kShape<at>.loss_metric;
    sums[0] = local[loss];
    for (int k = 1; k < count; ++k) sums[k * kThreads] = local[k];
  });
}

// Computes the reductions of a compiled segment, and stores the operands of its scans.
__device__ __forceinline__ void compute_reductions(int index, const CompiledTokens& in, Partial* results,
                                                   int gathered) {
  program::with_segment(index, [&]<int at>(program::Index<at> segment) {
    constexpr unsigned sums = program::kShape<at>.sums, singles = program::kShape<at>.singles;
    constexpr int reductions = 32 - __builtin_clz((sums | singles) << 1 | 1);
    double sum[reductions];
    float single[reductions];
    for (int n = 0; n < reductions; ++n) {
      if (sums >> n & 1) sum[n] = results[n * kThreads].sum;
      if (singles >> n & 1) single[n] = results[n * kThreads].single;
    }
    PL_NO_UNROLL
    for (int j = 0; j < kQuad; ++j) {
      ReductionTaker io{{in, j}, sum, single, results, gathered};
      compute_segment(segment, io);
    }
    for (int n = 0; n < reductions; ++n) {
      if (sums >> n & 1) results[n * kThreads].sum = sum[n];
      if (singles >> n & 1) results[n * kThreads].single = single[n];
    }
  });
}

}  // namespace policy_loss::cuda

// Computes the compiled token segments (program/compiled.h) for a lane's four tokens, one after the other. A
// segment's registers are registers of the processor, and the results have the bits of the interpreter's.
#pragma once

#include "cuda/program_tokens.cuh"

namespace policy_loss::cuda {

// A lane's part of a reduction over a row, or the part of a piece of the row.
union RowPartial {
  double sum;
  float single;  // of the lanes of row_sum_single
  Extreme<float> extreme;
};

template <Op op>
__device__ __forceinline__ float compute(float a, float b = 0, float c = 0, float d = 0) {
  return apply<op, float>(a, b, c, d);
}

// Adds a token's value to a lane's smallest or largest value. For row_keep, which is reduction number n,
// stores the value and counts it; lane n has the index of the array in `kept`.
template <Op op>
__device__ __forceinline__ void add_value(const CompiledTokens& in, int j, float value, int n, int kept,
                                          RowPartial* results) {
  RowPartial& to = results[n * kThreads];
  const int64_t position = in.tokens.position(j);
  if constexpr (op == Op::k_row_keep) {
    const int index = __shfl_sync(kAllLanes, kept, n);
    if (!in.is_live(j)) return;
    in.kept[index * in.stride + position] = value;
    to.sum += 1;
  } else if (in.is_live(j)) {
    Extreme<float> extreme = to.extreme;
    extreme.add(program::is_largest(op), value, static_cast<int>(position));
    to.extreme = extreme;
  }
}

#define R(index) r##index
#define C(index) c##index
#define S(index) s##index
#define U(index) in.uniforms[index]
#define LOAD(index) [[maybe_unused]] const float c##index = in.column(index, j);
#define LOAD_SCANNED(index) [[maybe_unused]] const float s##index = in.scanned_at(index, j);
#define REGISTERS(...) [[maybe_unused]] float __VA_ARGS__;
#define ARITHMETIC(name, out, ...) r##out = compute<Op::k_##name>(__VA_ARGS__);
#define OF_POSITION(name, out, number, a) \
  r##out = value_of_position(Op::k_##name, (a).precise, in.row, in.tokens.position(j));
#define FOR_TOKENS \
  PL_NO_UNROLL     \
  for (int j = 0; j < kQuad; ++j)

// Computes the outputs of a compiled segment. Adds the losses to sums[0] and the terms of metric k to
// sums[(1 + k) * kThreads]. Stores the gradient of token j in grad[j * kWarp].
__device__ __forceinline__ void compute_outputs(int index, const CompiledTokens& in, float* sums,
                                                float* grad) {
  switch (index) {
#define SEGMENT(index, uniform_count, metric_count, row_sums, row_singles, is_long, carried_count) \
  case index: {                                                                                    \
    constexpr int metrics = metric_count;                                                          \
    float loss = sums[0];                                                                          \
    [[maybe_unused]] float metric[metrics + 1];                                                    \
    for (int k = 0; k < metrics; ++k) metric[k] = sums[(1 + k) * kThreads];
#define READ_AHEAD(...)
#define READ_AHEAD_OF_GRAD
#define BEGIN_LOOP FOR_TOKENS {
#define CARRIED(number, ...) ARITHMETIC(__VA_ARGS__)
#define END_LOOP }
#define SUM(...)
#define SUM_SINGLE(...)
#define EXTREME(...)
#define SCAN(...)
#define LOSS(a) loss += in.is_live(j) ? static_cast<float>(a) : 0.0f;
#define METRIC(out, a) metric[out] += in.is_live(j) ? static_cast<float>(a) : 0.0f;
#define LOSS_COPIED(...)
#define METRIC_COPIED(...)
#define GRAD(a, b) grad[j * kWarp] = (a) * (b);
// Copies the sum of the loss or of a metric to another that adds up the same numbers.
#define COPY(to, from) to = from;
#define END_SEGMENT                                                       \
  sums[0] = loss;                                                         \
  for (int k = 0; k < metrics; ++k) sums[(1 + k) * kThreads] = metric[k]; \
  break;                                                                  \
  }
#include "program/compiled_segments.inc"
  }
}

// Computes the reductions of a compiled segment, and stores the operands of its scans. The lane's results of
// reduction n are at results[n * kThreads]. On lane n, `kept` is the index of what reduction n keeps.
__device__ __forceinline__ void compute_reductions(int index, const CompiledTokens& in, RowPartial* results,
                                                   int kept) {
  switch (index) {
#define SEGMENT(index, uniform_count, metric_count, row_sums, row_singles, is_long, carried_count) \
  case index: {                                                                                    \
    constexpr unsigned sums = row_sums, singles = row_singles;                                     \
    constexpr int reductions = 32 - __builtin_clz((sums | singles) << 1 | 1);                      \
    [[maybe_unused]] double sum[reductions];                                                       \
    [[maybe_unused]] float single[reductions];                                                     \
    for (int n = 0; n < reductions; ++n) {                                                         \
      if (sums >> n & 1) sum[n] = results[n * kThreads].sum;                                       \
      if (singles >> n & 1) single[n] = results[n * kThreads].single;                              \
    }
#define READ_AHEAD(...)
#define READ_AHEAD_OF_GRAD
#define BEGIN_LOOP FOR_TOKENS {
#define CARRIED(number, ...) ARITHMETIC(__VA_ARGS__)
#define END_LOOP }
#define SUM(out, a) sum[out] += in.is_live(j) ? static_cast<float>(a) : 0.0f;
#define SUM_SINGLE(out, a) single[out] += in.is_live(j) ? static_cast<float>(a) : 0.0f;
#define EXTREME(name, out, a) add_value<Op::k_##name>(in, j, a, out, kept, results);
#define SCAN(name, out, a, ...) \
  if (in.is_live(j)) in.scanned[out * in.stride + in.tokens.position(j)] = a;
#define LOSS(...)
#define METRIC(...)
#define LOSS_COPIED(...)
#define METRIC_COPIED(...)
#define GRAD(...)
#define COPY(...)
#define END_SEGMENT                                                 \
  for (int n = 0; n < reductions; ++n) {                            \
    if (sums >> n & 1) results[n * kThreads].sum = sum[n];          \
    if (singles >> n & 1) results[n * kThreads].single = single[n]; \
  }                                                                 \
  break;                                                            \
  }
#include "program/compiled_segments.inc"
  }
}

#undef LOAD
#undef LOAD_SCANNED
#undef REGISTERS
#undef ARITHMETIC
#undef OF_POSITION
#undef FOR_TOKENS
#undef R
#undef C
#undef S
#undef U

}  // namespace policy_loss::cuda

// Computes the scans of a program along a row (see program/program.h) on the CPU.
#pragma once

#include "math/target.h"
#include "program/program.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Replaces values[0], values[step], values[2·step], … with their running sums.
inline void running_sum(double decay, int64_t length, int64_t step, float* values) {
  double sum = 0;
  for (int64_t i = 0; i < length; ++i, values += step) {
    sum = static_cast<double>(*values) + decay * sum;
    *values = static_cast<float>(sum);
  }
}

// Replaces the value of each unmasked token with the sum over the contiguous run of unmasked tokens around
// it.
inline void sum_runs(const uint8_t* mask, int64_t length, float* values) {
  int64_t begin = 0;
  while (begin < length) {
    double sum = 0;
    int64_t end = begin;
    for (; end < length && mask[end] != 0; ++end) sum += static_cast<double>(values[end]);
    for (int64_t t = begin; t < end; ++t) values[t] = static_cast<float>(sum);
    begin = end + 1;
  }
}

// Replaces the values of a row's tokens with the results of a scan. The values of masked tokens must be 0.
inline void scan(program::Op op, double decay, const uint8_t* mask, int64_t length, float* values) {
  if (op == program::Op::k_run_sum) return sum_runs(mask, length, values);
  if (length == 0) return;
  if (op == program::Op::k_prefix_sum) return running_sum(decay, length, 1, values);
  running_sum(decay, length, -1, values + length - 1);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

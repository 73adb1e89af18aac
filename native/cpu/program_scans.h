// Computes the scans of a program along a row (see program/program.h) on the CPU.
#pragma once

#include "cpu/run_sums.h"
#include "cpu/shuffle.h"
#include "program/program.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Computes running sums for one block of tokens after another. A block lies in vectors, so that the steps
// need no memory.
class RunningSums {
 public:
  static constexpr int kTokens = 16;  // of a block
  static constexpr int kWidth = kVectorBytes / sizeof(double);
  static constexpr int kVectors = kTokens / kWidth;
  typedef double Vector __attribute__((vector_size(kVectorBytes)));
  typedef float Floats __attribute__((vector_size(kVectorBytes / 2)));

  explicit RunningSums(double decay) : power_{decay} {
    for (int step = 0; step < kSteps; ++step) power_[step + 1] = power_[step] * power_[step];
  }

  // Copy a block from and to memory, in its order or backwards.
  template <bool forwards>
  static PL_FN void load(const float* from, Vector* x) {
    for (int v = 0; v < kVectors; ++v) {
      Floats floats;
      memcpy(&floats, from + v * kWidth, sizeof floats);
      const Vector y = __builtin_convertvector(floats, Vector);
      x[forwards ? v : kVectors - 1 - v] = forwards ? y : reversed(y);
    }
  }
  template <bool forwards>
  static PL_FN void store(const Vector* x, float* to) {
    for (int v = 0; v < kVectors; ++v) {
      const Vector& y = x[forwards ? v : kVectors - 1 - v];
      const Floats floats = __builtin_convertvector(forwards ? y : reversed(y), Floats);
      memcpy(to + v * kWidth, &floats, sizeof floats);
    }
  }

  // Replaces the numbers of the next block with their running sums.
  PL_FN void replace(Vector* x) {
    add_windows<0>(x);
    constexpr int vectors = kWindow / kWidth;  // that hold a window
    for (int v = 0; v < kVectors; ++v) x[v] += power_[kSteps] * (v < vectors ? sum_[v] : x[v - vectors]);
    for (int v = 0; v < vectors; ++v) sum_[v] = x[kVectors - vectors + v];
  }

 private:
  static constexpr int kSteps = program::kWindowSteps;
  static constexpr int kWindow = 1 << kSteps;
  static_assert(kWindow % kWidth == 0);

  // Performs the steps from number `step` on.
  template <int step>
  PL_FN void add_windows(Vector* x) {
    constexpr int distance = 1 << step;
    constexpr int vectors =
        distance < kWidth ? 1 : distance / kWidth;  // that the step needs of the block before
    Vector in[vectors + kVectors];
    for (int v = 0; v < vectors; ++v) in[v] = before_[step][v];
    for (int v = 0; v < kVectors; ++v) in[vectors + v] = x[v];
    for (int v = 0; v < vectors; ++v) before_[step][v] = in[kVectors + v];
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (distance < kWidth)
        x[v] += power_[step] * pick<kWidth - distance, 1>(in[v], in[v + 1]);
      else
        x[v] += power_[step] * in[v];
    }
    if constexpr (step + 1 < kSteps) add_windows<step + 1>(x);
  }

  double power_[kSteps + 1];  // of the decay, for each step, and for a whole window
  // Of the block before: the last numbers that each step got, and the last running sums.
  Vector before_[kSteps][kWindow / 2 > kWidth ? kWindow / 2 / kWidth : 1] = {};
  Vector sum_[kWindow / kWidth] = {};
};

// Replaces the values of a row with their running sums, from the first token on or from the last one. There
// must be room for RunningSums::kTokens − 1 more values.
template <bool forwards>
void running_sums(double decay, int64_t length, float* values) {
  constexpr int kTokens = RunningSums::kTokens;
  const int64_t padded = (length + kTokens - 1) / kTokens * kTokens;
  for (int64_t i = length; i < padded; ++i) values[i] = 0;
  RunningSums sums(decay);
  for (int64_t k = 0; k < padded; k += kTokens) {
    float* const block = values + (forwards ? k : padded - kTokens - k);
    RunningSums::Vector x[RunningSums::kVectors];
    RunningSums::load<forwards>(block, x);
    sums.replace(x);
    RunningSums::store<forwards>(x, block);
  }
}

// Replaces the values of a row's tokens with the results of a scan. The values of masked tokens must be 0.
// `solid` says how many tokens at the row's start are unmasked if all others are masked, else it is 0.
inline void scan(program::Op op, double decay, const uint8_t* mask, int64_t solid, int64_t length,
                 float* values) {
  if (op == program::Op::k_run_sum) return RunSums::replace(mask, solid, length, values);
  if (op == program::Op::k_prefix_sum) return running_sums<true>(decay, length, values);
  running_sums<false>(decay, length, values);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

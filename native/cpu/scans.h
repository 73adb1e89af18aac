// Computes the scans of a program along a row (see program/program.h) on the CPU.
#pragma once

#include "cpu/mask.h"
#include "cpu/tile.h"
#include "program/program.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Computes running sums over one tile of tokens after another. Each round writes an array of its own, which
// begins with the last numbers of the tile before.
class RunningSums {
 public:
  static constexpr int kTokens = 256;  // of a tile

  explicit RunningSums(double decay) : power_{decay} {
    for (int round = 0; round < kRounds; ++round) power_[round + 1] = power_[round] * power_[round];
  }

  // The numbers of the tile, and their running sums after add().
  double* numbers() { return after_[0] + kWindow; }
  const double* sums() const { return sums_ + kWindow; }

  void add() {
    add_window<0>();
    add_window<1>();
    add_window<2>();
    static_assert(kRounds == 3);
    const double power = power_[kRounds];
    const double* const windows = after_[kRounds] + kWindow;
#pragma omp simd safelen(8)
    for (int i = 0; i < kTokens; ++i) sums_[kWindow + i] = windows[i] + power * sums_[i];
    static_assert(kWindow == 8);
    for (double* const after : after_) memcpy(after, after + kTokens, kWindow * sizeof(double));
    memcpy(sums_, sums_ + kTokens, kWindow * sizeof(double));
  }

 private:
  static constexpr int kRounds = program::kWindowRounds;
  static constexpr int kWindow = 1 << kRounds;

  template <int round>
  void add_window() {
    const double power = power_[round];
    const double* const from = after_[round] + kWindow;
    double* const to = after_[round + 1] + kWindow;
#pragma omp simd
    for (int i = 0; i < kTokens; ++i) to[i] = from[i] + power * from[i - (1 << round)];
  }

  // Of the decay, for each round, and for a whole window.
  double power_[kRounds + 1];
  // The numbers before the first round and after each one.
  double after_[kRounds + 1][kWindow + kTokens] = {};
  double sums_[kWindow + kTokens] = {};
};

// Replaces the values of a row with their running sums, from the first token on or from the last one.
template <bool forwards>
void replace_with_running_sums(double decay, int64_t length, float* values) {
  RunningSums sums(decay);
  for (int64_t at = 0; at < length; at += RunningSums::kTokens) {
    const int n = static_cast<int>(length - at < RunningSums::kTokens ? length - at : RunningSums::kTokens);
    float* const tile = forwards ? values + at : values + length - at - 1;
    for (int i = 0; i < n; ++i) sums.numbers()[i] = static_cast<double>(forwards ? tile[i] : tile[-i]);
    sums.add();
    for (int i = 0; i < n; ++i) (forwards ? tile[i] : tile[-i]) = static_cast<float>(sums.sums()[i]);
  }
}

// Returns the sum of n values.
inline double sum_of(const float* values, int64_t n) {
  LaneSum<double> sum;
  for_lanes(static_cast<int>(n), [&](int lane, int i) { sum.lane[lane] += static_cast<double>(values[i]); });
  return sum.take();
}

// Replaces the value of each unmasked token of a row with the sum over its turn (contiguous unmasked tokens).
// A first pass over the granules of the row writes the sum up to each token, or, in a granule without masked
// tokens, only up to its last one. A second pass, from the row's end, copies the sum of each turn's last
// token to the others. Granules with both kinds of tokens are computed without branches, because turns may be
// short.
class TurnSums {
 public:
  // There must be room for kGranule − 1 more values.
  static void replace(const uint8_t* mask, int64_t length, float* values) {
    TurnSums sums(mask, length);
    const int64_t last = (length - 1) / kGranule * kGranule;
    for (int64_t at = 0; at <= last; at += kGranule) sums.add(at, values + at);
    for (int64_t at = last; at >= 0; at -= kGranule) sums.copy(at, values + at);
  }

 private:
  TurnSums(const uint8_t* mask, int64_t length) : mask_(mask), length_(length) {}

  // Returns the mask of the granule that begins at a token. Tokens after the row's end count as masked.
  const uint8_t* mask_of(int64_t at) {
    if (length_ - at >= kGranule) return mask_ + at;
    memset(last_mask_, 0, kGranule);
    memcpy(last_mask_, mask_ + at, length_ - at);
    return last_mask_;
  }

  void add(int64_t at, float* values) {
    const uint8_t* const mask = mask_of(at);
    if (!has_unmasked(mask)) {
      sum_ = 0;
      return;
    }
    if (!has_masked(mask)) {
      sum_ += sum_of(values, kGranule);
      values[kGranule - 1] = static_cast<float>(sum_);
      return;
    }
    alignas(64) double x[kGranule];
    alignas(64) int64_t lanes[kGranule];
#pragma omp simd
    for (int i = 0; i < kGranule; ++i) {
      x[i] = static_cast<double>(values[i]);
      lanes[i] = mask[i] != 0 ? -1 : 0;
    }
    // Vectors of two numbers, so that the sum stays in one register for both additions and lanes.
    typedef double Doubles __attribute__((vector_size(16)));
    typedef int64_t Longs __attribute__((vector_size(16)));
    Doubles sum = {sum_};
    for (int i = 0; i < kGranule; ++i) {
      sum += Doubles{x[i]};
      sum = reinterpret_cast<Doubles>(reinterpret_cast<Longs>(sum) & Longs{lanes[i]});
      x[i] = sum[0];
    }
    sum_ = sum[0];
#pragma omp simd
    for (int i = 0; i < kGranule; ++i) values[i] = static_cast<float>(x[i]);
  }

  void copy(int64_t at, float* values) {
    const uint8_t* const mask = mask_of(at);
    if (!has_unmasked(mask)) {
      next_ = 0;
      return;
    }
    if (!has_masked(mask)) {
      if (next_ == 0) of_turn_ = float_bits(values[kGranule - 1]);
      next_ = -1;
      for (int i = 0; i < kGranule; ++i) values[i] = bits_float(of_turn_);
      return;
    }
    alignas(64) int32_t lanes[2 * kGranule], ends[kGranule], continues[kGranule];
    lanes[kGranule] = next_;
#pragma omp simd
    for (int i = 0; i < kGranule; ++i) lanes[i] = mask[i] != 0 ? -1 : 0;
#pragma omp simd
    for (int i = 0; i < kGranule; ++i) {
      ends[i] = lanes[i] & ~lanes[i + 1] & float_bits(values[i]);
      continues[i] = lanes[i] & lanes[i + 1];
    }
    for (int i = kGranule - 1; i >= 0; --i) {
      of_turn_ = (of_turn_ & continues[i]) | ends[i];
      values[i] = bits_float(of_turn_);
    }
    next_ = lanes[0];
  }

  const uint8_t* const mask_;
  const int64_t length_;
  uint8_t last_mask_[kGranule];
  double sum_ = 0;  // of the turn so far
  // For the second pass: whether the token after the granule is unmasked, as a lane, and the bits of the sum
  // of its turn.
  int32_t next_ = 0, of_turn_ = 0;
};

// Replaces the values of a row's tokens with the results of a scan. The values of masked tokens must be 0.
// `solid` says how many tokens at the row's start are unmasked if all others are masked, else it is 0.
inline void scan(program::Op op, double decay, const uint8_t* mask, int64_t solid, int64_t length,
                 float* values) {
  if (op == program::Op::k_prefix_sum) return replace_with_running_sums<true>(decay, length, values);
  if (op == program::Op::k_suffix_sum) return replace_with_running_sums<false>(decay, length, values);
  if (solid == 0) return TurnSums::replace(mask, length, values);
  const auto sum = static_cast<float>(sum_of(values, solid));
  for (int64_t i = 0; i < solid; ++i) values[i] = sum;
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Sums that do not depend on the order of addition. However a batch is divided among threads or into parts,
// the total has the same bits.
#pragma once

#include <vector>

#include "engine/sums.h"

namespace policy_loss {

// The number of sums in Sums.
constexpr int kSums = sizeof(Sums) / sizeof(double);
// A sum of float32 numbers with weights is exact as the sum of this many float64 numbers: they hold 53 bits
// each, and float32 has 277 bit positions.
constexpr int kTermsOfSum = 8;

// The members of Sums without any rounding. Each sum is high + low + the numbers of `rest`. Adding a number
// to `high` leaves a rounding error, which is added to `low`. The error of that addition is almost always 0;
// otherwise it goes to `rest`.
//
// The struct lies outside POLICY_LOSS_TARGET because code of different builds exchanges it.
struct ExactSums {
  double high[kSums] = {};
  double low[kSums] = {};
  std::vector<double> rest[kSums];  // by increasing magnitude; no two numbers of a sum have a bit in common

  // The sums' numbers: loss[0], metric[0], row_metric[0], kl and entropy of Sums.
  static constexpr int kLoss = 0, kMetric = 2, kRowMetric = kMetric + kMaxMetrics,
                       kKl = kRowMetric + kMaxRowMetrics, kEntropy = kKl + 1;
  static_assert(kEntropy + 1 == kSums);

  void clear();
  void add_to_rest(int k, double x);
  void add(const ExactSums& other);
  void add(const Sums& x);
  // Adds x to sum k.
  void add(int k, double x);

  // Returns the sums, each rounded once.
  Sums rounded() const;
  // Writes each sum as kTermsOfSum numbers that add up to it: the rounded sum, the rounded remainder, and so
  // on, then zeros. add() adds sums in that form.
  void write(double* terms) const;
  void add(const double* terms);
};

}  // namespace policy_loss

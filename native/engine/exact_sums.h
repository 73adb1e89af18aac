// Sums that do not depend on the order of addition. However a batch is divided among threads or into parts,
// the total has the same bits.
#pragma once

#include <vector>

#include "engine/sums.h"

namespace policy_loss {

// The number of sums in Sums.
constexpr int kSums = sizeof(Sums) / sizeof(double);

// The members of Sums without any rounding. Each sum is high + low + the numbers of `rest`. Adding a number
// to `high` leaves a rounding error, which is added to `low`. The error of that addition is almost always 0;
// otherwise it goes to `rest`.
//
// The struct lies outside POLICY_LOSS_TARGET because code of different builds exchanges it.
struct ExactSums {
  double high[kSums] = {};
  double low[kSums] = {};
  std::vector<double> rest[kSums];  // by increasing magnitude; no two numbers of a sum have a bit in common

  void clear();
  void add_to_rest(int k, double x);
  void add(const ExactSums& other);
  // Adds x to sum k.
  void add(int k, double x);

  // Returns the sums, each rounded once.
  Sums rounded() const;
  // Returns the numbers whose sum is exactly sum k. The first is the rounded sum, and each further one is the
  // rounded remainder. There is no number if the sum is 0, and only one if it is not finite.
  std::vector<double> terms(int k) const;
};

}  // namespace policy_loss

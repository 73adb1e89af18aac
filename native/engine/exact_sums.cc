#include "engine/exact_sums.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "math/scalar.h"

namespace policy_loss {
namespace {

// Adds x to numbers that are ordered by increasing magnitude and have no bit in common, and keeps them so
// (Shewchuk, "Adaptive precision floating-point arithmetic", 1997: grow-expansion).
void grow(std::vector<double>* numbers, double x) {
  size_t kept = 0;
  for (const double number : *numbers) {
    double sum = number;
    const double error = two_sum(x, &sum);
    if (error != 0) (*numbers)[kept++] = error;
    x = sum;
  }
  numbers->resize(kept);
  if (x != 0) numbers->push_back(x);
}

// Returns the sum of numbers that grow() keeps, rounded to the nearest float64, or to the even one of two.
double round(const std::vector<double>& numbers) {
  size_t i = numbers.size();
  if (i == 0) return 0;
  double sum = numbers[--i];
  double error = 0;
  while (i > 0 && error == 0) error = two_sum(numbers[--i], &sum);
  // `sum` is rounded correctly unless `error` is exactly half a unit in its last place. The numbers that
  // remain then decide the direction.
  if (i == 0 || (error < 0) != (numbers[i - 1] < 0)) return sum;
  const double twice = 2 * error;
  const double other = sum + twice;
  return other - sum == twice ? other : sum;
}

std::vector<double> numbers_of(const ExactSums& sums, int k) {
  std::vector<double> numbers = sums.rest[k];
  grow(&numbers, sums.low[k]);
  grow(&numbers, sums.high[k]);
  return numbers;
}

}  // namespace

void ExactSums::clear() {
  for (int k = 0; k < kSums; ++k) {
    high[k] = low[k] = 0;
    rest[k].clear();
  }
}

void ExactSums::add_to_rest(int k, double x) {
  // Without a finite sum, the errors are NaN and mean nothing.
  if (std::isfinite(x)) grow(&rest[k], x);
}

void ExactSums::add(int k, double x) {
  const double error = two_sum(two_sum(x, &high[k]), &low[k]);
  if (error != 0) add_to_rest(k, error);
}

void ExactSums::add(const ExactSums& other) {
  for (int k = 0; k < kSums; ++k) {
    if (other.high[k] == 0 && other.low[k] == 0 && other.rest[k].empty()) continue;
    add(k, other.high[k]);
    if (!std::isfinite(high[k])) continue;
    add(k, other.low[k]);
    for (const double x : other.rest[k]) add(k, x);
  }
}

void ExactSums::add(const Sums& x) {
  double number[kSums];
  memcpy(number, &x, sizeof number);
  for (int k = 0; k < kSums; ++k) add(k, number[k]);
}

Sums ExactSums::rounded() const {
  double total[kSums];
  for (int k = 0; k < kSums; ++k) {
    if (!std::isfinite(high[k]))
      total[k] = high[k];
    else
      total[k] = rest[k].empty() ? high[k] + low[k] : round(numbers_of(*this, k));
  }
  Sums sums;
  memcpy(&sums, total, sizeof total);
  return sums;
}

void ExactSums::write(double* terms) const {
  for (int k = 0; k < kSums; ++k) {
    double* const out = terms + k * kTermsOfSum;
    std::fill(out, out + kTermsOfSum, 0.0);
    if (!std::isfinite(high[k])) {
      out[0] = high[k];
      continue;
    }
    std::vector<double> numbers = numbers_of(*this, k);
    for (int i = 0; i < kTermsOfSum && !numbers.empty(); ++i) {
      out[i] = round(numbers);
      grow(&numbers, -out[i]);
    }
  }
}

void ExactSums::add(const double* terms) {
  for (int k = 0; k < kSums; ++k)
    for (int i = 0; i < kTermsOfSum; ++i) add(k, terms[k * kTermsOfSum + i]);
}

}  // namespace policy_loss

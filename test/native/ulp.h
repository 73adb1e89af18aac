// The largest error that a test of the functions in native/math has found, in ulp (units in the last place).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace policy_loss::test {

struct Worst {
  const char* name;
  double ulp = 0;
  float at = 0;
  int64_t wrong = 0;  // the number of wrong values that ulp does not cover, such as an unexpected NaN
  float wrong_at = 0;

  void error(double found, float x) {
    if (std::isnan(found)) return check(false, x);
    if (found > ulp) {
      ulp = found;
      at = x;
    }
  }
  void check(bool holds, float x) {
    if (holds) return;
    ++wrong;
    wrong_at = x;
  }
  void add(const Worst& other) {
    error(other.ulp, other.at);
    wrong += other.wrong;
    if (other.wrong > 0) wrong_at = other.wrong_at;
  }
};

// Returns the distance between neighbouring float32 numbers near x.
inline double ulp_at(double x) {
  const int exponent = std::max(std::ilogb(x), -126);
  return std::ldexp(1.0, exponent - 23);
}

}  // namespace policy_loss::test

// The random numbers of programs. Each is a hash of a seed, a row and a position in the row, so every device
// and every order of the tokens gives the same numbers.
#pragma once

#include <cstdint>
#include <cstring>

#include "math/target.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The random numbers of the tokens of one row.
class RowDraws {
 public:
  PL_FN RowDraws(double seed, int64_t row) {
    uint64_t bits;
    memcpy(&bits, &seed, sizeof bits);
    const uint64_t key = mixed(mixed(bits) + static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15u);
    low_ = static_cast<uint32_t>(key);
    high_ = static_cast<uint32_t>(key >> 32);
  }

  // Returns one of the 2²⁴ multiples of 2⁻²⁴ from 0 to 1, without 1.
  PL_FN float at(uint32_t position) const {
    const uint32_t x = mixed(mixed(position + low_) ^ high_);
    return static_cast<float>(static_cast<int32_t>(x >> 8)) * 0x1p-24f;
  }

 private:
  // The last lines of SplitMix64 (Steele, Lea, Flood, 2014).
  static PL_FN uint64_t mixed(uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // The last lines of MurmurHash3 (Appleby, 2011).
  static PL_FN uint32_t mixed(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
  }

  uint32_t low_, high_;
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

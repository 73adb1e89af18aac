// Visits the few of a block's values that a vectorised loop has flagged.
#pragma once

#include "cpu/tile.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// One flag per value of a block, 0 or 1.
struct alignas(64) Flags {
  uint8_t of[kBlock];

  // Calls visit(i) for each value i that is flagged, in order.
  template <class Visit>
  PL_FN void visit(Visit visit) const {
    constexpr int kWord = sizeof(uint64_t);
    for (int at = 0; at < kBlock; at += kWord) {
      uint64_t word;
      memcpy(&word, of + at, kWord);
      for (; word != 0; word &= word - 1) visit(at + __builtin_ctzll(word) / 8);
    }
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

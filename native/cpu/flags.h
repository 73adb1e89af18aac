// Visits the few of a block's values that a vectorised loop has flagged.
#pragma once

#include "cpu/tile.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// One flag per value of a block, 0 or 1.
struct alignas(64) Flags {
  uint8_t of[kBlock];

  // Calls visit(i) for each value i that is flagged, in order. One loop over the flags of the whole block has
  // fewer branches that a processor cannot predict than a loop per word.
  template <class Visit>
  PL_FN void visit(Visit visit) const {
    for (uint64_t left = bits(); left != 0; left &= left - 1) visit(__builtin_ctzll(left));
  }

 private:
  // Returns the flags as one bit each.
  PL_FN uint64_t bits() const {
    constexpr int kWord = sizeof(uint64_t);
    static_assert(kBlock == kWord * 8);
    uint64_t result = 0;
    for (int w = 0; w < kBlock / kWord; ++w) {
      uint64_t word;
      memcpy(&word, of + w * kWord, kWord);
      // Moves the lowest bit of each byte to the last byte, in the bytes' order.
      result |= (word * 0x0102040810204080u >> 56) << (w * kWord);
    }
    return result;
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

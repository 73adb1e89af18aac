// Counts and searches the bytes of a mask.
#pragma once

#include "cpu/lanes.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Whether any of some numbers has a property. With bool, Clang tests all numbers of a vector at once. GCC 12
// would not vectorise the loop.
#if defined(__clang__)
template <class Number>
using Any = bool;
#else
template <class Number>
using Any = Number;
#endif

// Return whether a granule has a masked token, and whether it has an unmasked one.
PL_FN bool has_masked(const uint8_t* granule) {
  Any<uint8_t> any = 0;
  for (int i = 0; i < kGranule; ++i) any |= granule[i] == 0 ? 1 : 0;
  return any != 0;
}
PL_FN bool has_unmasked(const uint8_t* granule) {
  Any<uint8_t> any = 0;
  for (int i = 0; i < kGranule; ++i) any |= granule[i] != 0 ? 1 : 0;
  return any != 0;
}

inline bool all_unmasked(const uint8_t* mask, int n) {
  int at = 0;
  for (; at + kGranule <= n; at += kGranule)
    if (has_masked(mask + at)) return false;
  Any<uint8_t> any_masked = 0;
  for (; at < n; ++at) any_masked |= mask[at] == 0 ? 1 : 0;
  return any_masked == 0;
}

// Returns the number of tokens up to and including the last unmasked one, rounded up to a multiple of
// kGranule but at most n.
inline int unmasked_length(const uint8_t* mask, int n) {
  int length = n / kGranule * kGranule;
  for (int i = length; i < n; ++i)
    if (mask[i] != 0) return n;
  while (length > 0 && !has_unmasked(mask + length - kGranule)) length -= kGranule;
  return length;
}

// Returns the position after the last unmasked token of a row before `last`, or 0 if there is none. That can
// happen even if unmasked tokens were counted, because the caller may change the mask during the call.
inline int64_t end_of_unmasked(const uint8_t* mask, int64_t last) {
  while (last > kGranule && !has_unmasked(mask + last - kGranule)) last -= kGranule;
  while (last > 0 && mask[last - 1] == 0) --last;
  return last;
}

inline int64_t count_mask(const uint8_t* mask, int64_t n) {
  // Counts in bytes, so that a vector holds one counter for each byte of the mask. Adds the counters to the
  // total before they overflow.
  constexpr int kLanes = 64;
  constexpr int kMost = 255;
  int64_t total = 0;
  int64_t i = 0;
  while (n - i >= kLanes) {
    uint8_t counts[kLanes] = {};
    const int64_t rounds = (n - i) / kLanes < kMost ? (n - i) / kLanes : kMost;
    for (int64_t round = 0; round < rounds; ++round, i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane)
        counts[lane] = static_cast<uint8_t>(counts[lane] + (mask[i + lane] != 0 ? 1 : 0));
    int sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += counts[lane];
    total += sum;
  }
  for (; i < n; ++i) total += mask[i] != 0 ? 1 : 0;
  return total;
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Prefetches memory for the loops over tiles.
#pragma once

#include "engine/sums.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Prefetches what a loop reads or writes `distance` tokens after `tokens`, as many tokens as it computes at a
// time, into the L1 or the L2 cache. Memory is thus read while the processor computes. Processors prefetch by
// themselves, too, but they stop at the end of each page.
template <int level, int writes, class Number>
PL_FN void fetch(const Number* tokens, int distance) {
  constexpr int kLine = 64 / sizeof(Number);  // the numbers in a cache line
  for (int i = 0; i < kSumLanes; i += kLine) __builtin_prefetch(tokens + distance + i, writes, 4 - level);
}

// Prefetches for a loop that takes longer to compute than memory takes.
template <int writes = 0, class Number>
PL_FN void fetch_in_time(const Number* tokens) {
  fetch<1, writes>(tokens, 512);
}

// How many tokens ahead fetch_ahead() prefetches into the L2 and into the L1 cache.
constexpr int kFar = 1024;
constexpr int kNear = 64;

// Prefetches for a loop that waits for memory: into the L2 cache first, which can wait for more cache lines
// at a time than the L1 cache. This takes twice as many instructions. With shorter vectors than those of
// AVX-512, loops compute longer, and wait for memory only if the columns have 32 bits.
template <int writes = 0, class Number>
PL_FN void fetch_ahead(const Number* tokens) {
#if defined(__AVX512F__)
  constexpr bool waits = true;
#elif defined(__AVX__)
  constexpr bool waits = sizeof(Number) == sizeof(float);
#else
  constexpr bool waits = false;
#endif
  if constexpr (waits) {
    fetch<2, writes>(tokens, kFar);
    fetch<1, writes>(tokens, kNear);
  } else {
    fetch_in_time<writes>(tokens);
  }
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

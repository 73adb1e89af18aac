// The random choices of advantage functions. They depend only on a seed and on the batch, so every device
// makes the same choices.
#pragma once

#include <cstdint>

#include "math/target.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The pseudo-random number generator SplitMix64 (Steele, Lea, Flood, 2014). Its initial state is mixed from a
// seed and a stream number.
class Random {
 public:
  PL_FN Random(uint64_t seed, uint64_t stream) : state_(seed) {
    state_ = next() ^ stream;
    state_ = next();
  }

  // Returns a number from 0 to limit − 1. All these numbers are equally likely.
  PL_FN int64_t below(int64_t limit) {
    // `whole` is a multiple of the limit. If x is not below it, another x is drawn. Otherwise small results
    // would be more likely than large ones.
    const uint64_t whole = ~uint64_t{0} - ~uint64_t{0} % static_cast<uint64_t>(limit);
    while (true) {
      const uint64_t x = next();
      if (x < whole) return static_cast<int64_t>(x % static_cast<uint64_t>(limit));
    }
  }

 private:
  PL_FN uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  uint64_t state_;
};

// Draws `surplus` of the `n` numbers in `from` at random, each at most once, and moves them to the front of
// `from`. `group` selects the stream of random numbers.
PL_FN void draw_surplus(uint64_t seed, int64_t group, int64_t surplus, int64_t n, int64_t* from) {
  Random random(seed, static_cast<uint64_t>(group));
  for (int64_t i = 0; i < surplus; ++i) {
    const int64_t other = i + random.below(n - i);
    const int64_t drawn = from[other];
    from[other] = from[i];
    from[i] = drawn;
  }
}

// For each dropped group, draws one of the kept groups at random and calls visit() with its index. `kept`
// lists the n_kept groups that are kept, out of `groups` in total.
template <class Visit>
PL_FN void draw_duplicates(uint64_t seed, int64_t groups, int64_t n_kept, const int64_t* kept, Visit visit) {
  if (n_kept == 0) return;
  Random random(seed, ~uint64_t{0});
  for (int64_t i = n_kept; i < groups; ++i) visit(kept[random.below(n_kept)]);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Counts and gathers values by the digits of their keys, for the selections of programs (see
// program/select.h).
#pragma once

#include "cpu/target.h"
#include "cpu/tile.h"
#include "program/select.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Counts the values whose keys begin with the known digits, by the next digit, and adds up their
// significands.
class DigitCounts {
 public:
  void add(const Digit& digit, const float* values, int64_t n) {
    for (int64_t at = 0; at < n; at += kGranule)
      add_granule(digit, values + at, static_cast<int>(n - at < kGranule ? n - at : kGranule));
    added_ += n;
  }

  // Returns whether flush() must be called before n more values are added.
  bool is_full(int64_t n) const { return added_ + n > kMost; }

  // Adds the counts to bins, each `repeats` times, and sets them to 0.
  void flush(uint64_t repeats, Bin* bins) {
    for (int b = 0; b < kMaxBins; ++b)
      for (int k = 0; k < kApart; ++k) {
        bins[b].count += repeats * (count_[k][b] >> kSumBits);
        bins[b].significands += repeats * (count_[k][b] & ((uint64_t{1} << kSumBits) - 1));
      }
    *this = {};
  }

  // The most values between two calls of flush(). So no sum exceeds its bits.
  static constexpr int64_t kMost = 1 << 16;

 private:
  // The counts of neighbouring values are separate. Neighbours often have the same digit, and an addition
  // to a counter waits for the one before.
  static constexpr int kApart = 4;
  // A counter has the sum of significands in its low bits, and the number of values in the others.
  static constexpr int kSumBits = 40;
  // The bin of the values whose keys begin with other digits.
  static constexpr uint32_t kOthers = kMaxBins;

  void add_granule(const Digit& digit, const float* values, int n) {
    alignas(64) uint32_t bin[kGranule], significand[kGranule];
    int32_t any = 0;
#pragma omp simd reduction(| : any)
    for (int i = 0; i < n; ++i) {
      const uint32_t key = key_of(values[i]);
      const bool counts = digit.includes(key);
      bin[i] = counts ? digit.bin_of(key) : kOthers;
      significand[i] = significand_of(key);
      any |= counts ? 1 : 0;
    }
    if (any == 0) return;
    for (int i = 0; i < n; ++i) count_[i % kApart][bin[i]] += uint64_t{1} << kSumBits | significand[i];
  }

  uint64_t count_[kApart][kMaxBins + 1] = {};
  int64_t added_ = 0;
};

// See cpu::Target.
inline void count_digits(const Digit& digit, const cpu::GatheredValues& gathered, const cpu::Chunk& chunk,
                         Bin* bins) {
  DigitCounts counts;
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const uint32_t repeats = gathered.batch->repeats_of(row);
    const int64_t n = gathered.tokens[row];
    for (int64_t at = 0; at < n; at += DigitCounts::kMost) {
      const int64_t some = n - at < DigitCounts::kMost ? n - at : DigitCounts::kMost;
      if (counts.is_full(some)) counts.flush(repeats, bins);
      counts.add(digit, gathered.of_row(row) + at, some);
    }
    if (row + 1 == chunk.last_row || gathered.batch->repeats_of(row + 1) != repeats)
      counts.flush(repeats, bins);
  }
}

// Writes the keys of those of n values that begin with the known digits to `keys`, at most `most` of them.
// Returns how many it has written.
inline int gather_keys(const Digit& digit, const float* values, int64_t n, uint32_t* keys, int most) {
  int gathered = 0;
  for (int64_t at = 0; at < n; at += kGranule) {
    const int size = static_cast<int>(n - at < kGranule ? n - at : kGranule);
    int32_t any = 0;
#pragma omp simd reduction(| : any)
    for (int i = 0; i < size; ++i) any |= digit.includes(key_of(values[at + i])) ? 1 : 0;
    for (int i = 0; any != 0 && i < size && gathered < most; ++i)
      if (const uint32_t key = key_of(values[at + i]); digit.includes(key)) keys[gathered++] = key;
  }
  return gathered;
}

inline int64_t count_key(uint32_t key, const cpu::GatheredValues& gathered, int64_t row) {
  const float* const values = gathered.of_row(row);
  const int64_t n = gathered.tokens[row];
  int64_t count = 0;
#pragma omp simd reduction(+ : count)
  for (int64_t i = 0; i < n; ++i) count += key_of(values[i]) == key ? 1 : 0;
  return count;
}

// Finds values by their rank among those of one row. Counts them by digits until few values begin with the
// known digits, and sorts these. They serve the next search, too: the two ranks of a quantile are neighbours.
class RowRank {
 public:
  // Forgets the values of earlier searches.
  void clear() { last_ = 0; }

  // Returns the value with a rank among n values. All calls between two of clear() must pass the same values.
  double select(const float* values, int64_t n, double by) {
    if (n == 0) return 0;
    const auto rank = static_cast<int64_t>(existing_rank(by, static_cast<double>(n)));
    if (rank >= first_ && rank < last_) return static_cast<double>(value_of(keys_[rank - first_]));
    Search search(Op::k_row_rank, by);
    DigitCounts counts;
    for (int64_t left = n; left > kFew; left = static_cast<int64_t>(search.found())) {
      Bin bins[kMaxBins] = {};
      for (int64_t at = 0; at < n; at += DigitCounts::kMost) {
        counts.add(search.digit(), values + at, n - at < DigitCounts::kMost ? n - at : DigitCounts::kMost);
        counts.flush(1, bins);
      }
      search.choose(bins);
      if (search.is_done()) return search.result();
    }
    first_ = static_cast<int64_t>(search.below());
    last_ = first_ + gather_keys(search.digit(), values, n, keys_, kFew);
    sort(static_cast<int>(last_ - first_));
    return static_cast<double>(value_of(keys_[rank - first_]));
  }

 private:
  static constexpr int kFew = 64;

  void sort(int n) {
    for (int i = 1; i < n; ++i) {
      const uint32_t key = keys_[i];
      int at = i;
      for (; at > 0 && keys_[at - 1] > key; --at) keys_[at] = keys_[at - 1];
      keys_[at] = key;
    }
  }

  int64_t first_ = 0, last_ = 0;  // the ranks of the keys
  uint32_t keys_[kFew];
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

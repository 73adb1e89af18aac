// How a program selects among gathered values (see program/program.h): a radix selection over their bits.
//
// Each value has a key, an integer in the order of the values. The search finds the key's digits, the highest
// first. For each digit, all values whose keys begin with the digits found so far are counted by their next
// digit. The values with the same highest digit have the same exponent, so their significands are summed as
// integers. Neither the counts nor these sums depend on the order of the values.
#pragma once

#include <cstdint>
#include <cstring>

#include "program/interpret.h"

namespace policy_loss {

// The digit of a key that a search wants next: `bins` possible digits, from the bit `shift` on. The higher
// digits, which `mask` selects, are known.
struct Digit {
  uint32_t known, mask;
  int shift;
  uint32_t bins;

  // Returns whether a key begins with the known digits.
  PL_FN bool includes(uint32_t key) const { return ((key ^ known) & mask) == 0; }
  PL_FN uint32_t bin_of(uint32_t key) const { return key >> shift & (bins - 1); }
};

// The values whose keys have the same digits: their number and the sum of their significands.
struct Bin {
  uint64_t count, significands;
};

}  // namespace policy_loss

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Returns the key of a value. Keys are in the order of the values; that of NaN is the largest.
PL_FN uint32_t key_of(float x) {
  const int32_t bits = float_bits(x + 0.0f);  // −0 becomes 0
  const auto key = static_cast<uint32_t>(bits) ^ (static_cast<uint32_t>(bits >> 31) | 0x80000000u);
  return x != x ? ~0u : key;
}

// Returns the value of a key. That of the largest key is NaN.
PL_FN float value_of(uint32_t key) {
  return bits_float(static_cast<int32_t>(key >> 31 ? key & 0x7fffffffu : ~key));
}

// Returns a number that is larger for a larger value and, of equal values, for a smaller place.
PL_FN uint64_t key_of(float x, uint32_t place) {
  return uint64_t{key_of(x)} << 32 | ~place;
}
// Returns the place in such a number.
PL_FN uint32_t place_of(uint64_t key) {
  return ~static_cast<uint32_t>(key);
}

// The digits of a key, of which the highest is the sign with the exponent.
constexpr int kDigits = 4;
constexpr int kMaxBins = 512;
PL_FN constexpr int digit_shift(int digit) {
  return digit == 0 ? 23 : digit == 1 ? 15 : digit == 2 ? 7 : 0;
}
PL_FN constexpr int digit_bins(int digit) {
  return digit == 0 ? 512 : digit == 3 ? 128 : 256;
}

// Returns a key's significand, the integer that value_of(key) is a power of two times.
PL_FN uint32_t significand_of(uint32_t key) {
  const auto bits = static_cast<uint32_t>(float_bits(value_of(key)));
  const uint32_t fraction = bits & 0x7fffff;
  return (bits >> 23 & 0xff) == 0 ? fraction : fraction | 0x800000;
}

// Returns the unit in the last place (ulp) of values with this highest digit of the key.
PL_FN double ulp_of(uint32_t key) {
  const auto bits = static_cast<uint32_t>(float_bits(value_of(key)));
  const uint32_t exponent = bits >> 23 & 0xff;
  const uint64_t power = (exponent > 0 ? exponent : 1) + 1023 - 150;
  double ulp;
  const uint64_t bits_of_ulp = power << 52 | static_cast<uint64_t>(bits >> 31) << 63;
  memcpy(&ulp, &bits_of_ulp, sizeof ulp);
  return ulp;
}

// Returns the rank among `total` values that is nearest to the given number, or −1 if there are no values.
PL_FN double existing_rank(double rank, double total) {
  const double whole = rank >= 0 ? round_down(rank) : 0.0;
  return whole > total - 1 ? total - 1 : whole;
}

// A search for the smallest key at which the values up to it fulfil the condition of a selection.
class Search {
 public:
  PL_FN Search(Op op, double by) : op_(op), by_(by) {}

  // Returns whether the key is found, or does not exist.
  PL_FN bool is_done() const { return digit_ == kDigits || is_missing_; }
  // Returns the digits found so far, as a key whose other digits are 0.
  PL_FN uint32_t key() const { return key_; }

  // Returns how many values begin with the digits found so far, and how many are below them.
  PL_FN double found() const { return ties_; }
  PL_FN double below() const { return below_; }
  // Replaces the selection by one of a rank. Returns false, and does nothing, if the value with this rank
  // does not begin with the digits found so far.
  PL_FN bool look_for_rank(double by) {
    const double rank = existing_rank(by, total_);
    if (rank < below_ || rank >= below_ + ties_) return false;
    op_ = Op::k_rows_rank;
    by_ = rank;
    return true;
  }
  // Returns the next digit of the key.
  PL_FN Digit digit() const {
    return {key_, digit_ == 0 ? 0 : ~0u << digit_shift(digit_ - 1), digit_shift(digit_),
            static_cast<uint32_t>(digit_bins(digit_))};
  }

  // Finds the next digit, given the bins of the values whose keys begin with the digits found so far.
  PL_FN void choose(const Bin* bins) {
    if (digit_ == 0) begin(bins);
    const int shift = digit_shift(digit_);
    const auto last = static_cast<uint32_t>(digit_bins(digit_) - 1);
    for (uint32_t b = 0;; ++b) {
      const double count = below_ + static_cast<double>(bins[b].count);
      const uint32_t key = key_ | b << shift;
      const double sum = sum_ + static_cast<double>(bins[b].significands) * ulp_of(key);
      const uint32_t end = key | ((1u << shift) - 1u);
      const bool is_found = is_fulfilled(count, sum, end);
      if (is_found || (b == last && digit_ > 0)) {
        key_ = key;
        ties_ = static_cast<double>(bins[b].count);
        ++digit_;
        return;
      }
      below_ = count;
      sum_ = sum;
      if (b < last) continue;
      is_missing_ = true;
      return;
    }
  }

  // Returns the result, but for rows_rank_at.
  PL_FN double result() const {
    if (total_ == 0) return 0;
    if (op_ == Op::k_rows_under_mean) return is_missing_ ? total_ : below_ + ties_under_mean();
    if (op_ == Op::k_rows_under_fill) return below_;
    return static_cast<double>(value_of(key_));
  }
  // Returns how many of the values that equal the one with the rank come before it. Negative if there are no
  // values.
  PL_FN double rank_among_ties() const { return by_ - below_; }

 private:
  PL_FN void begin(const Bin* bins) {
    for (int b = 0; b < digit_bins(0); ++b) total_ += static_cast<double>(bins[b].count);
    if (op_ == Op::k_rows_under_mean || op_ == Op::k_rows_under_fill) return;
    by_ = existing_rank(by_, total_);
  }

  PL_FN bool is_fulfilled(double count, double sum, uint32_t end) const {
    if (op_ == Op::k_rows_under_mean) return count > 0 && sum >= by_ * count;
    if (op_ == Op::k_rows_under_fill)
      return (count < total_ ? sum + static_cast<double>(value_of(end)) * (total_ - count) : sum) >= by_;
    return count > by_;
  }

  // Returns how many of the values that equal the found one can come along before the mean is too large.
  PL_FN double ties_under_mean() const {
    const double over = static_cast<double>(value_of(key_)) - by_;
    if (!(over > 0)) return 0;
    const double most = -round_down((sum_ - by_ * below_) / over) - 1;
    return most > 0 ? (most < ties_ ? most : ties_) : 0.0;
  }

  Op op_;
  double by_, total_ = 0;
  int digit_ = 0;
  uint32_t key_ = 0;
  // The values below the digits found so far, and those that have the found key.
  double below_ = 0, sum_ = 0, ties_ = 0;
  bool is_missing_ = false;
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

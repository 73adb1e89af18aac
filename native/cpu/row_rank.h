// Selects among the values that the tokens of a row keep (row_rank, see program/program.h).
#pragma once

#include "cpu/flags.h"
#include "program/select.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Searches the values of one row. It narrows the range of the result, by counting the values up to two limits
// at a time, until few values are in the range. They serve the next search too, because the two ranks of a
// quantile are neighbours.
class RowRank {
 public:
  // Forgets the values of earlier searches.
  void clear() { first_ = last_ = 0; }

  // Returns the value with a rank among n values. All calls between two of clear() must pass the same values.
  double select(const float* values, int64_t n, double by) {
    if (n == 0) return 0;
    const auto rank = static_cast<int64_t>(existing_rank(by, static_cast<double>(n)));
    if (rank < first_ || rank >= last_) search(values, n, rank);
    return static_cast<double>(value_of(last_ - first_ > kFew ? high_ : keys_[rank - first_]));
  }

 private:
  static constexpr int kFew = 64;
  static constexpr uint32_t kKeyOfZero = 0x80000000;  // the key before it belongs to −0, and so to no value
  static constexpr uint32_t kLeastKey = 0x007fffff;   // of −∞
  static constexpr uint32_t kInfinityKey = 0xff800000;

  static uint32_t key_below(uint32_t key) { return key == kKeyOfZero ? key - 2 : key - 1; }

  // Sorts kFew keys. Counts for each key those that come before it, because loops without branches vectorise.
  static void sort(uint32_t* keys) {
    int32_t ranks[kFew] = {};
    uint32_t unsorted[kFew];
    memcpy(unsorted, keys, sizeof unsorted);
    for (int k = 0; k < kFew; ++k) {
      const uint32_t key = unsorted[k];
#pragma omp simd
      for (int i = 0; i < kFew; ++i)
        ranks[i] += (key < unsorted[i] ? 1 : 0) | (key == unsorted[i] && k < i ? 1 : 0);
    }
    for (int i = 0; i < kFew; ++i) keys[ranks[i]] = unsorted[i];
  }

  // Sets the range of the result to the keys in (low_, high_], whose values have the ranks [first_, last_).
  // If these are few, collects their keys. Otherwise, all of them equal high_.
  void search(const float* values, int64_t n, int64_t rank) {
    first_ = 0;
    last_ = n;
    low_ = kLeastKey - 1;
    high_ = ~0u;
    if (n > 4 * kFew) narrow_by_sample(values, n, rank);
    bool interpolates = true;
    while (last_ - first_ > kFew && !has_one_key()) {
      const int64_t size = last_ - first_;
      if (interpolates && low_ > kLeastKey && high_ < kInfinityKey) {
        narrow_by_interpolation(values, n, rank);
      } else {
        const uint32_t middle = low_ + (high_ - low_) / 2;
        narrow(values, n, rank, middle, middle);
      }
      interpolates = !interpolates || last_ - first_ <= size / 2;
    }
    if (last_ - first_ <= kFew) collect(values, n);
  }

  bool has_one_key() const {
    return low_ >= kInfinityKey || low_ == key_below(high_) || low_ + 1 == high_;
  }

  // Narrows the range to one that probably has the result, according to a sample of the values.
  void narrow_by_sample(const float* values, int64_t n, int64_t rank) {
    uint32_t sample[kFew];
    for (int64_t i = 0; i < kFew; ++i) sample[i] = key_of(values[i * n / kFew]);
    sort(sample);
    const double share = (static_cast<double>(rank) + 0.5) / static_cast<double>(n);
    const double reach = 2.5 * square_root(kFew * share * (1 - share)) + 2;
    const double first = kFew * share - reach, last = kFew * share + reach;
    const uint32_t a = first < 0 ? kLeastKey : key_below(sample[static_cast<int>(first)]);
    const uint32_t b = last >= kFew ? kInfinityKey : sample[static_cast<int>(last)];
    narrow(values, n, rank, a, b);
  }

  // Narrows the range to one that has the result if the values are distributed evenly.
  void narrow_by_interpolation(const float* values, int64_t n, int64_t rank) {
    const auto low = static_cast<double>(value_of(low_)), high = static_cast<double>(value_of(high_));
    const auto size = static_cast<double>(last_ - first_);
    const double share = (static_cast<double>(rank - first_) + 0.5) / size;
    const double reach = 1.5 * square_root(share * (1 - share) / size) + 4 / size;
    const double first = share > reach ? share - reach : 0, last = share + reach < 1 ? share + reach : 1;
    narrow(values, n, rank, key_of(static_cast<float>(low + first * (high - low))),
           key_of(static_cast<float>(low + last * (high - low))));
  }

  // Narrows the range by the limits a and b, of which a is not larger.
  void narrow(const float* values, int64_t n, int64_t rank, uint32_t a, uint32_t b) {
    const uint32_t limits[] = {limit_at(a), limit_at(b)};
    int64_t up_to[2];
    count_up_to(values, n, value_of(limits[0]), value_of(limits[1]), up_to);
    for (int k = 0; k < 2; ++k) {
      if (rank >= up_to[k] && limits[k] > low_) {
        low_ = limits[k];
        first_ = up_to[k];
      }
      if (rank < up_to[k] && limits[k] < high_) {
        high_ = limits[k];
        last_ = up_to[k];
      }
    }
  }

  // Returns the key of a number that is not larger than ∞, at least −∞, and not −0.
  static uint32_t limit_at(uint32_t key) {
    if (key <= kLeastKey) return kLeastKey;
    if (key >= kInfinityKey) return kInfinityKey;
    return key == kKeyOfZero - 1 ? kKeyOfZero : key;
  }

  static void count_up_to(const float* values, int64_t n, float a, float b, int64_t* up_to) {
    up_to[0] = up_to[1] = 0;
    for (int64_t at = 0; at < n; at += kTile) {
      const int size = static_cast<int>(n - at < kTile ? n - at : kTile);
      int32_t up_to_a = 0, up_to_b = 0;
#pragma omp simd reduction(+ : up_to_a, up_to_b)
      for (int i = 0; i < size; ++i) {
        up_to_a += values[at + i] <= a ? 1 : 0;
        up_to_b += values[at + i] <= b ? 1 : 0;
      }
      up_to[0] += up_to_a;
      up_to[1] += up_to_b;
    }
  }

  // Copies those of n values to `out` that are in the range: above `low` and not above `high`. A limit that
  // is NaN does not apply. Returns how many they are. There must be room for kVector more.
  static int take_range(const float* values, int64_t n, float low, float high, float* out) {
    int taken = 0;
#if defined(__AVX512F__)
    const __mmask16 takes_nan = high != high ? 0xffff : 0;
    const __m512 lows = _mm512_set1_ps(low), highs = _mm512_set1_ps(high);
    for (int64_t at = 0; at < n; at += kVector) {
      const auto exist = static_cast<__mmask16>(n - at < kVector ? (1u << (n - at)) - 1 : 0xffff);
      const __m512 x = _mm512_maskz_loadu_ps(exist, values + at);
      const __mmask16 inside =
          _mm512_cmp_ps_mask(x, lows, _CMP_NLE_UQ) & _mm512_cmp_ps_mask(x, highs, _CMP_NGT_UQ);
      const __mmask16 is_number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
      const auto taking = static_cast<__mmask16>(exist & inside & (is_number | takes_nan));
      _mm512_storeu_ps(out + taken, _mm512_maskz_compress_ps(taking, x));
      taken += __builtin_popcount(taking);
    }
#else
    const int32_t takes_nan = high != high ? 1 : 0;
    for (int64_t at = 0; at < n; at += kBlock) {
      const int size = static_cast<int>(n - at < kBlock ? n - at : kBlock);
      Flags flags;
      if (size < kBlock) flags = {};
#pragma omp simd
      for (int i = 0; i < size; ++i) {
        const float x = values[at + i];
        const int32_t is_outside = (x <= low ? 1 : 0) | (x > high ? 1 : 0);
        flags.of[i] = static_cast<uint8_t>((is_outside ^ 1) & ((x == x ? 1 : 0) | takes_nan));
      }
      flags.visit([&](int i) { out[taken++] = values[at + i]; });
    }
#endif
    return taken;
  }

  // Collects and sorts the keys in the range, which are at most kFew.
  void collect(const float* values, int64_t n) {
    float found[kFew + kVector];
    const int count = take_range(values, n, value_of(low_), value_of(high_), found);
    for (int i = 0; i < kFew; ++i) keys_[i] = i < count ? key_of(found[i]) : ~0u;
    sort(keys_);
  }

  int64_t first_ = 0, last_ = 0;
  uint32_t low_ = 0, high_ = 0;
  uint32_t keys_[kFew];
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Gathers what a selection needs of the kept values of a chunk's rows (see cpu/select.h), tile by tile.
#pragma once

#include "cpu/flags.h"
#include "cpu/gathering.h"
#include "cpu/program_loops.h"
#include "program/select.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

class Gatherer {
 public:
  // `gathering` is null if nothing is gathered.
  explicit Gatherer(const cpu::Gathering* gathering) : gathering_(gathering) {}
  Gatherer(const Gatherer&) = delete;
  Gatherer& operator=(const Gatherer&) = delete;
  ~Gatherer() {
    end_row();
    send_candidates();
  }

  bool takes(int kept) const { return gathering_ && gathering_->kept == kept; }
  // Returns whether only a sample of a segment's tokens is wanted.
  bool samples(int segment) const {
    return gathering_ && gathering_->sample > 0 && gathering_->segment == segment;
  }
  // Returns the position in a row of its first sampled token.
  static int64_t first_sample(const cpu::Gathering& gathering, const Layout& layout, int64_t row) {
    const int64_t over = layout.begin(row) % gathering.sample;
    return over == 0 ? 0 : gathering.sample - over;
  }

  void start_row(int64_t row) {
    end_row();
    row_ = row;
  }

  // Takes the unmasked ones of n values, a multiple of kBlock and at most kSharedTile. The first belongs to
  // the token at `position`.
  void add(const TokenOperand& x, const Lane* lanes, int n, int64_t position) {
    if (x.is_uniform()) {
      float values[kSharedTile];
      for (int i = 0; i < n; ++i) values[i] = x.value;
      return add(TokenOperand{values}, lanes, n, position);
    }
    if (gathering_->sample > 0)
      add_sample(x.data, lanes, n, position);
    else if (gathering_->sums)
      add_values<true>(x.data, lanes, n, position);
    else
      add_values<false>(x.data, lanes, n, position);
  }

 private:
  static constexpr int kCapacity = 4 * kBlock;

  // One integer per token that a step of a loop computes.
  struct alignas(64) Lanes {
    int32_t of[kSumLanes];
  };
  static int32_t total(const Lanes& x) {
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int l = 0; l < kSumLanes; ++l) sum += x.of[l];
    return sum;
  }
  static bool has_any(const Lanes& x) {
    Any<int32_t> any = 0;
    for (int l = 0; l < kSumLanes; ++l) any |= x.of[l] != 0 ? 1 : 0;
    return any != 0;
  }

  // Collects all values.
  void add_sample(const float* x, const Lane* lanes, int n, int64_t position) {
    for (int at = 0; at < n; at += kBlock) {
      make_room();
      for (int i = at; i < at + kBlock; ++i) {
        candidates_[collected_] = {row_, static_cast<int32_t>(position + i), key_of(x[i])};
        collected_ += lanes[i] & 1;
      }
    }
  }

  // Counts the values below the lower limit, adds them up if their sum is wanted, and collects the others
  // that are not above the upper limit. Most blocks have few of these or none.
  template <bool wants_sum>
  void add_values(const float* x, const Lane* lanes, int n, int64_t position) {
    const float low = gathering_->low, high = gathering_->high;
    Lanes less = less_;
    double sum[kSumLanes];
    sum_.store(sum);
    for (int at = 0; at < n; at += kBlock) {
      Lanes others = {};
      for (int first = at; first < at + kBlock; first += kSumLanes) {
        PL_FOR_LANES
        for (int l = 0; l < kSumLanes; ++l) {
          const float value = x[first + l];
          const int32_t lane = lanes[first + l];
          const int32_t is_less = (value < low ? -1 : 0) & lane;
          const int32_t is_more = value > high ? -1 : 0;
          less.of[l] -= is_less;
          others.of[l] |= lane & ~(is_less | is_more);
          if constexpr (wants_sum) sum[l] += kept(value, is_less);
        }
      }
      if (has_any(others)) collect(x + at, lanes + at, position + at);
    }
    less_ = less;
    sum_.load(sum);
  }

  // Collects the candidates of a block, and counts the values that equal the limits.
  __attribute__((noinline)) void collect(const float* x, const Lane* lanes, int64_t position) {
    const float low = gathering_->low, high = gathering_->high;
    const int32_t takes_nan = high != high ? 1 : 0;
    Lanes at_low = at_low_, at_high = at_high_;
    Flags flags;
    for (int first = 0; first < kBlock; first += kSumLanes) {
      PL_FOR_LANES
      for (int l = 0; l < kSumLanes; ++l) {
        const float value = x[first + l];
        const int32_t lane = lanes[first + l];
        const int32_t is_outside = (value <= low ? 1 : 0) | (value >= high ? 1 : 0);
        const int32_t is_number = value == value ? 1 : 0;
        flags.of[first + l] = static_cast<uint8_t>((is_outside ^ 1) & (is_number | takes_nan) & lane);
        at_low.of[l] -= value == low ? lane : 0;
        at_high.of[l] -= value == high ? lane : 0;
      }
    }
    at_low_ = at_low;
    at_high_ = at_high;
    make_room();
    flags.visit([&](int i) {
      candidates_[collected_++] = {row_, static_cast<int32_t>(position + i), key_of(x[i])};
    });
  }

  // Ends the counts and the sum of a row.
  void end_row() {
    if (!gathering_ || !gathering_->rows || row_ < 0) return;
    cpu::RowCounts* const row = gathering_->rows + row_;
    row->less += total(less_);
    row->at_low += total(at_low_);
    row->at_high += gathering_->low == gathering_->high ? 0 : total(at_high_);
    row->sum += sum_.take();
    less_ = at_low_ = at_high_ = {};
  }

  // Makes room for the candidates of a block.
  void make_room() {
    if (collected_ > kCapacity - kBlock) send_candidates();
  }

  void send_candidates() {
    if (collected_ > 0) cpu::take_candidates(gathering_->to, candidates_, collected_);
    collected_ = 0;
  }

  const cpu::Gathering* const gathering_;
  int64_t row_ = -1;
  // How many of the row's values so far are below the lower limit, how many equal a limit, and the sum of
  // those below.
  Lanes less_ = {}, at_low_ = {}, at_high_ = {};
  LaneSum<double> sum_;
  int collected_ = 0;
  cpu::KeptToken candidates_[kCapacity];
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

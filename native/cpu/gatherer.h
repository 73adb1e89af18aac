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
  ~Gatherer() { send_candidates(); }

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

  void start_row(int64_t row) { row_ = row; }

  // Takes the unmasked ones of n values, a multiple of kBlock and at most kSharedTile. The first belongs to
  // the token at `position`.
  void add(const TokenOperand& x, const Lane* lanes, int n, int64_t position) {
    if (x.is_uniform()) {
      float values[kSharedTile];
      for (int i = 0; i < n; ++i) values[i] = x.value;
      return add(TokenOperand{values}, lanes, n, position);
    }
    if (gathering_->sums) sum_below_low(x.data, lanes, n);
    Lanes less = {};
    for (int at = 0; at < n; at += kBlock)
      if (has_others(x.data + at, lanes + at, &less)) collect(x.data + at, lanes + at, position + at);
    if (gathering_->rows) gathering_->rows[row_].less += total(less);
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

  // Adds up the values below the lower limit. A row is divided into the same tiles in every pass.
  void sum_below_low(const float* x, const Lane* lanes, int n) const {
    const float low = gathering_->low;
    LaneSum<double> sum;
    double partial[kSumLanes];
    sum.store(partial);
    for (int at = 0; at < n; at += kSumLanes) {
      PL_FOR_LANES
      for (int l = 0; l < kSumLanes; ++l) {
        const float value = kept(x[at + l], lanes[at + l]);
        partial[l] += x[at + l] < low ? value : 0.0f;
      }
    }
    sum.load(partial);
    gathering_->rows[row_].sum += sum.take();
  }

  // Counts the values of a block below the lower limit, and returns whether there are others that are not
  // above the upper limit. Most blocks have none.
  bool has_others(const float* x, const Lane* lanes, Lanes* less) const {
    const float low = gathering_->low, high = gathering_->high;
    Lanes count = *less, others = {};
    for (int at = 0; at < kBlock; at += kSumLanes) {
      PL_FOR_LANES
      for (int l = 0; l < kSumLanes; ++l) {
        const int32_t lane = lanes[at + l];
        const bool is_less = x[at + l] < low;
        const bool is_more = x[at + l] > high;
        count.of[l] -= is_less ? lane : 0;
        others.of[l] |= (is_less | is_more) ? 0 : lane;
      }
    }
    *less = count;
    int32_t any = 0;
#pragma omp simd reduction(| : any)
    for (int l = 0; l < kSumLanes; ++l) any |= others.of[l];
    return any != 0;
  }

  // Collects the candidates of a block, and counts the values that equal the limits.
  void collect(const float* x, const Lane* lanes, int64_t position) {
    const float low = gathering_->low, high = gathering_->high;
    const int32_t takes_nan = high != high ? 1 : 0;
    int32_t at_low = 0, at_high = 0;
    Flags flags;
#pragma omp simd reduction(+ : at_low, at_high)
    for (int i = 0; i < kBlock; ++i) {
      const int32_t is_outside = (x[i] <= low ? 1 : 0) | (x[i] >= high ? 1 : 0);
      const int32_t is_number = x[i] == x[i] ? 1 : 0;
      flags.of[i] = static_cast<uint8_t>((is_outside ^ 1) & (is_number | takes_nan) & lanes[i]);
      const int32_t one = lanes[i] & 1;
      at_low += x[i] == low ? one : 0;
      at_high += x[i] == high ? one : 0;
    }
    if (gathering_->rows) {
      cpu::RowCounts* const row = gathering_->rows + row_;
      row->at_low += at_low;
      row->at_high += low == high ? 0 : at_high;
    }
    if (collected_ > kCapacity - kBlock) send_candidates();
    flags.visit([&](int i) {
      candidates_[collected_++] = {row_, static_cast<int32_t>(position + i), key_of(x[i])};
    });
  }

  void send_candidates() {
    if (collected_ > 0) cpu::take_candidates(gathering_->to, candidates_, collected_);
    collected_ = 0;
  }

  const cpu::Gathering* const gathering_;
  int64_t row_ = 0;
  int collected_ = 0;
  cpu::KeptToken candidates_[kCapacity];
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

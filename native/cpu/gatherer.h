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
  explicit Gatherer(const cpu::Gathering* gathering) : gathering_(gathering) {
    if (gathering && gathering->counts) memset(tables_, 0, sizeof tables_);
  }
  Gatherer(const Gatherer&) = delete;
  Gatherer& operator=(const Gatherer&) = delete;
  ~Gatherer() {
    send_candidates();
    send_bins();
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

  // Begins a row that counts `repeats` times.
  void start_row(int64_t row, uint32_t repeats) {
    if (!gathering_) return;
    if (repeats != repeats_) send_bins();
    row_ = row;
    repeats_ = repeats;
  }

  // Takes the unmasked ones of n values, a multiple of kBlock and at most kSharedTile. The first belongs to
  // the token at `position`.
  void add(const TokenOperand& x, const Lane* lanes, int n, int64_t position) {
    if (x.is_uniform()) {
      float values[kSharedTile];
      for (int i = 0; i < n; ++i) values[i] = x.value;
      return add(TokenOperand{values}, lanes, n, position);
    }
    if (gathering_->collects) {
      count_limits(x.data, lanes, n);
      for (int at = 0; at < n; at += kBlock)
        if (has_candidates(x.data + at, lanes + at)) collect(x.data + at, lanes + at, position + at);
    }
    if (gathering_->counts) count(x.data, lanes, n);
  }

 private:
  // A table sums up the values of each bin in one number: the count above kCountShift bits for the sum of the
  // significands, which have 24 bits.
  static constexpr int kCountShift = 40;
  static constexpr int kMostCounted = 1 << (kCountShift - 24);
  // A processor adds to several tables faster than to one, because an addition must wait for the one before
  // it in the same bin.
  static constexpr int kTables = 4;
  static constexpr int kNoBin = kMaxBins;
  static constexpr int kCapacity = 4 * kBlock;

  void count_limits(const float* x, const Lane* lanes, int n) const {
    if (!gathering_->rows) return;
    const float low = gathering_->low, high = gathering_->high;
    int32_t less = 0, at_low = 0, at_high = 0;
#pragma omp simd reduction(+ : less, at_low, at_high)
    for (int i = 0; i < n; ++i) {
      const int32_t one = lanes[i] & 1;
      less += x[i] < low ? one : 0;
      at_low += x[i] == low ? one : 0;
      at_high += x[i] == high ? one : 0;
    }
    cpu::RowCounts* const row = gathering_->rows + row_;
    row->less += less;
    row->at_low += at_low;
    row->at_high += low == high ? 0 : at_high;
  }

  // Returns whether a block may have candidates.
  bool has_candidates(const float* x, const Lane* lanes) const {
    const float low = gathering_->low, high = gathering_->high;
    int32_t any = 0;
#pragma omp simd reduction(| : any)
    for (int i = 0; i < kBlock; ++i) {
      const int32_t is_outside = (x[i] <= low ? 1 : 0) | (x[i] >= high ? 1 : 0);
      any |= (is_outside - 1) & lanes[i];
    }
    return any != 0;
  }

  // Collects the candidates of a block.
  void collect(const float* x, const Lane* lanes, int64_t position) {
    const float low = gathering_->low, high = gathering_->high;
    const int32_t takes_nan = high != high ? 1 : 0;
    Flags flags;
#pragma omp simd
    for (int i = 0; i < kBlock; ++i) {
      const int32_t is_outside = (x[i] <= low ? 1 : 0) | (x[i] >= high ? 1 : 0);
      const int32_t is_number = x[i] == x[i] ? 1 : 0;
      flags.of[i] = static_cast<uint8_t>((is_outside ^ 1) & (is_number | takes_nan) & lanes[i]);
    }
    if (collected_ > kCapacity - kBlock) send_candidates();
    flags.visit([&](int i) {
      candidates_[collected_++] = {row_, static_cast<int32_t>(position + i), key_of(x[i])};
    });
  }

  void count(const float* x, const Lane* lanes, int n) {
    if (counted_ > kMostCounted - n) send_bins();
    counted_ += n;
    const cpu::Gathering& g = *gathering_;
    const uint32_t digits = g.digits, digits_mask = g.digits_mask, bin_mask = g.bin_mask;
    const int shift = g.shift;
    uint32_t bins[kSharedTile], significands[kSharedTile];
#pragma omp simd
    for (int i = 0; i < n; ++i) {
      const uint32_t key = key_of(x[i]);
      const uint32_t other = ((key ^ digits) & digits_mask) | ~static_cast<uint32_t>(int32_t{lanes[i]});
      bins[i] = other == 0 ? key >> shift & bin_mask : static_cast<uint32_t>(kNoBin);
      significands[i] = significand_of(key);
    }
    for (int i = 0; i < n; i += kTables)
      for (int k = 0; k < kTables; ++k)
        tables_[k][bins[i + k]] += (uint64_t{1} << kCountShift) + significands[i + k];
  }

  void send_candidates() {
    if (collected_ > 0) cpu::take_candidates(gathering_->to, candidates_, collected_);
    collected_ = 0;
  }

  void send_bins() {
    if (counted_ == 0) return;
    cpu::BinSums bins[kMaxBins];
    for (int b = 0; b < kMaxBins; ++b) {
      bins[b] = {0, 0};
      for (int k = 0; k < kTables; ++k) {
        const uint64_t both = tables_[k][b];
        bins[b].count += repeats_ * (both >> kCountShift);
        bins[b].significands += repeats_ * (both & ((uint64_t{1} << kCountShift) - 1));
      }
    }
    cpu::take_bins(gathering_->to, bins);
    memset(tables_, 0, sizeof tables_);
    counted_ = 0;
  }

  const cpu::Gathering* const gathering_;
  int64_t row_ = 0;
  uint64_t repeats_ = 1;
  int collected_ = 0;
  int counted_ = 0;
  cpu::KeptToken candidates_[kCapacity];
  uint64_t tables_[kTables][kMaxBins + 1];
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Computes recurrences (see advantage/recurrence.h) along the rows of a chunk. Each row is computed from its
// last token to its first, in float64.
//
// All loops are vectorised. A recurrence is a chain of additions, each of which needs the result of the
// previous one. Here the chain has only one addition per kStride tokens.
#pragma once

#include "cpu/advantage_tiles.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The number of tokens that the vectorised recurrence computes at once.
constexpr int kStride = 8;

// The recurrence runs from the last tile of a row to the first. Each tile hands its own first kStride terms
// and results (x) to the tile before it.
struct TileCarry {
  double terms[kStride] = {};
  double x[kStride] = {};
};

// Replaces the n terms in x with the results x_i = term_i + decay·x_{i+1}. The array x must have room for
// kStride more numbers.
//
// First, each term is replaced by a sum of kStride neighbouring terms, in rounds that double the number of
// terms summed. The recurrence then computes kStride tokens at once, so its chain of dependent additions is
// kStride times shorter.
inline void recur_tile(double decay, double* x, int n, TileCarry* carry) {
  double terms[kStride];
  for (int k = 0; k < kStride; ++k) {
    x[n + k] = carry->terms[k];
    terms[k] = k < n ? x[k] : carry->terms[k - n];
  }
  double power = decay;
  // The sums from x[n + 1] on stay incomplete, because the terms from x[n + kStride] on are missing. These
  // sums lie past the end of the tile, and the code after the loop overwrites them without reading them.
  for (int distance = 1; distance < kStride; distance *= 2) {
#pragma omp simd
    for (int i = 0; i < n + kStride - distance; ++i) x[i] = fma(power, x[i + distance], x[i]);
    power *= power;
  }
  for (int k = 0; k < kStride; ++k) x[n + k] = carry->x[k];
  int i = n;
  for (; i >= kStride; i -= kStride) {
#pragma omp simd
    for (int k = 0; k < kStride; ++k) x[i - kStride + k] = fma(power, x[i + k], x[i - kStride + k]);
  }
  for (int k = i - 1; k >= 0; --k) x[k] = fma(power, x[k + kStride], x[k]);
  for (int k = 0; k < kStride; ++k) {
    carry->terms[k] = terms[k];
    carry->x[k] = x[k];
  }
}

// Computes the recurrence along one row, and writes the advantages and the returns. If `measured` is set, it
// writes nothing and adds the unmasked advantages to a Spread. To write whitened advantages, a second run
// computes them again, because keeping them as float32 in between would lose digits.
template <class F, bool measured>
class RecurrenceOfRow {
 public:
  RecurrenceOfRow(const F& f, const cpu::AdvantagePass& pass, int64_t row, Spread* spread,
                  NonFiniteValue* bad)
      : f_(f),
        pass_(pass),
        batch_(*pass.batch),
        row_(row),
        begin_(batch_.tokens.layout.begin(row)),
        mask_(batch_.tokens.mask + begin_),
        spread_(spread),
        bad_(bad) {}

  void run() {
    const int64_t length = batch_.tokens.layout.length(row_);
    const bool per_token = batch_.tokens.column[kTokenLevelRewardsInput].data != nullptr;
    const int64_t rewarded = per_token ? -1 : last_unmasked(mask_, length);
    if constexpr (F::traits.reads_baseline) {
      baseline_ = batch_.baselines[row_];
      if (!is_finite(baseline_)) report(bad_, NonFiniteInput::kBaselines, row_);
    }
    if (!per_token && !is_finite(batch_.rewards[row_])) report(bad_, NonFiniteInput::kRewards, row_);
    // Tiles start at multiples of kTile, so that the sums of measure() do not depend on padding.
    for (int64_t end = length; end > 0;) {
      const int64_t first = (end - 1) / kTile * kTile;
      const int n = static_cast<int>(end - first);
      const Tile tile = load(first, n, per_token);
      const bool is_rewarded = rewarded >= first && rewarded < end;
      int terms = n;  // the number of terms in x_
      // Whether masked tokens lie between unmasked ones. Most tiles have none.
      bool has_holes = false;
      if constexpr (skips_masked) {
        terms = static_cast<int>(count_mask(tile.mask, n));
        has_holes = !all_unmasked(tile.mask, terms);
      }
      if (has_holes)
        terms = find_unmasked_terms(tile, n);
      else
        find_terms(tile, terms);
      if (is_rewarded) x_[skips_masked ? terms - 1 : rewarded - first] += batch_.rewards[row_];
      const double after = carry_.x[0];
      recur_tile(f_.decay, x_, terms, &carry_);
      if (has_holes)
        spread_unmasked(tile, n, terms, after);
      else
        for (int i = terms; i < n; ++i) x_[i] = after;
      if constexpr (measured)
        measure(tile, n);
      else
        write(tile, first, n);
      end = first;
    }
  }

 private:
  static constexpr bool reads_values = F::traits.reads_values;
  static constexpr bool skips_masked = F::traits.skips_masked;

  struct Tile {
    const uint8_t* mask;
    const float* rewards;
    const float* values;

    PL_FN RecurrenceToken token(int i, double next_value) const {
      return {rewards[i], reads_values ? values[i] : 0.0, next_value, mask[i] != 0};
    }
  };

  Tile load(int64_t first, int n, bool per_token) {
    Tile tile{mask_ + first, reward_buffer_, nullptr};
    if (per_token) {
      tile.rewards =
          load_tile(batch_.tokens.column[kTokenLevelRewardsInput], begin_ + first, n, reward_buffer_);
      if (any_not_finite(tile.rewards, F::traits.reads_masked ? nullptr : tile.mask, n))
        report(bad_, NonFiniteInput::kTokenRewards, row_);
    }
    if constexpr (reads_values) {
      tile.values = load_tile(batch_.tokens.column[kValuesInput], begin_ + first, n, value_buffer_);
      if (any_not_finite(tile.values, nullptr, n)) report(bad_, NonFiniteInput::kValues, row_);
    }
    return tile;
  }

  // Stores the terms of the tile's first n tokens in x_.
  void find_terms(const Tile& tile, int n) {
    if (n == 0) return;
    const F f = f_;
    double* const x = x_;
#pragma omp simd
    for (int i = 0; i < n - 1; ++i) x[i] = f.term(tile.token(i, reads_values ? tile.values[i + 1] : 0.0));
    x[n - 1] = f.term(tile.token(n - 1, next_value_));
    if constexpr (reads_values) next_value_ = tile.values[0];
  }

  // Stores the terms of the unmasked tokens next to each other in x_, and returns their number.
  int find_unmasked_terms(const Tile& tile, int n) {
    int places[kTile];
    int unmasked = 0;
    for (int i = 0; i < n; ++i) {
      places[unmasked] = i;
      unmasked += tile.mask[i] != 0 ? 1 : 0;
    }
    for (int k = unmasked - 1; k >= 0; --k) {
      x_[k] = f_.term(tile.token(places[k], next_value_));
      if constexpr (reads_values) next_value_ = tile.values[places[k]];
    }
    return unmasked;
  }

  // Moves the results of the unmasked tokens from the front of x_ to the tokens' own places. A masked token
  // gets the result of the next unmasked one; `after` is the first result after the tile.
  void spread_unmasked(const Tile& tile, int n, int unmasked, double after) {
    for (int i = n - 1; i >= 0; --i) {
      if (tile.mask[i] != 0) after = x_[--unmasked];
      x_[i] = after;
    }
  }

  void measure(const Tile& tile, int n) {
    const F f = f_;
    const double* const x = x_;
    const double baseline = baseline_;
    const double count = static_cast<double>(count_mask(tile.mask, n));
    // The terms are stored first, because a loop with 8-bit masks and 64-bit sums would use short vectors.
    double* const terms = terms_;
#pragma omp simd
    for (int i = 0; i < n; ++i)
      terms[i] = if_unmasked_by(tile.mask[i], f.advantage(x[i], tile.token(i, 0.0), baseline));
    const double mean = count > 0 ? sum_of_terms(n) / count : 0.0;
#pragma omp simd
    for (int i = 0; i < n; ++i) {
      const double d = f.advantage(x[i], tile.token(i, 0.0), baseline) - mean;
      terms[i] = if_unmasked_by(tile.mask[i], d * d);
    }
    spread_->add({count, mean, sum_of_terms(n)});
  }

  double sum_of_terms(int n) const {
    LaneSum<double> sum;
    for_lanes(n, [&](int lane, int i) { sum.lane[lane] += terms_[i]; });
    return sum.take();
  }

  void write(const Tile& tile, int64_t first, int n) {
    const F f = f_;
    const double* const x = x_;
    const double baseline = baseline_, shift = pass_.shift, scale = pass_.scale;
    float* const out = pass_.outputs.advantages + begin_ + first;
#pragma omp simd
    for (int i = 0; i < n; ++i) {
      const double advantage = f.advantage(x[i], tile.token(i, 0.0), baseline);
      const float a = static_cast<float>((advantage - shift) * scale);
      out[i] = F::traits.zeroes_masked && tile.mask[i] == 0 ? 0.0f : a;
    }
    if (!pass_.outputs.returns) return;
    float* const returns = pass_.outputs.returns + begin_ + first;
#pragma omp simd
    for (int i = 0; i < n; ++i) returns[i] = static_cast<float>(f.returns(x[i], tile.token(i, 0.0)));
  }

  const F f_;
  const cpu::AdvantagePass& pass_;
  const AdvantageBatch& batch_;
  const int64_t row_;
  const int64_t begin_;
  const uint8_t* const mask_;
  Spread* const spread_;
  NonFiniteValue* const bad_;

  double baseline_ = 0;
  double next_value_ = 0;
  TileCarry carry_;
  alignas(64) float reward_buffer_[kTile] = {};
  alignas(64) float value_buffer_[kTile];
  alignas(64) double x_[kTile + kStride] = {};
  alignas(64) double terms_[kTile];
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

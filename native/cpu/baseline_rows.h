// Computes functions with a baseline per token (see advantage/token_baseline.h), one group of rows at a time.
#pragma once

#include "cpu/advantage_tiles.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

template <class F>
class BaselineOfGroup {
 public:
  BaselineOfGroup(const F& f, const cpu::AdvantagePass& pass, const cpu::BaselineRows& group,
                  NonFiniteValue* bad)
      : f_(f),
        pass_(pass),
        view_(pass.batch->tokens),
        columns_(pass.batch->tokens.column),
        group_(group),
        bad_(bad) {}

  void run() {
    BaselineGroup lengths;
    int64_t places = 0;
    for (int64_t i = 0; i < group_.size; ++i) {
      const int64_t row = group_.rows[i];
      const int64_t tokens = tokens_of(row);
      const int64_t end = end_of(row, tokens);
      if (!skips || end > 0) lengths.add(tokens);
      if (places < end) places = end;
      find_rewards_to_go(row);
      add_energies(row);
    }
    for (int64_t at = 0; at < places; ++at)
      group_.weighted[at] = f_.baseline(group_.weighted[at], group_.weights[at]);
    for (int64_t i = 0; i < group_.size; ++i) {
      const int64_t row = group_.rows[i];
      const int64_t tokens = tokens_of(row);
      // In a group of one row, the rewards to go are still there.
      if (group_.size > 1) find_rewards_to_go(row);
      write(row, f_.compared_places(lengths, tokens, end_of(row, tokens)));
    }
  }

 private:
  static constexpr bool skips = F::traits.skips_masked;

  const uint8_t* mask_of(int64_t row) const { return view_.mask + view_.layout.begin(row); }
  int64_t tokens_of(int64_t row) const { return count_mask(mask_of(row), view_.layout.length(row)); }
  int64_t end_of(int64_t row, int64_t tokens) const { return skips ? tokens : view_.layout.length(row); }

  // Sums the rewards of the row's unmasked tokens from its end.
  void find_rewards_to_go(int64_t row) {
    const int64_t begin = view_.layout.begin(row);
    const int64_t length = view_.layout.length(row);
    const uint8_t* const mask = mask_of(row);
    const bool per_token = columns_[kTokenLevelRewardsInput].data != nullptr;
    const int64_t rewarded = per_token ? -1 : last_unmasked(mask, length);
    if (!per_token && !is_finite(pass_.batch->rewards[row])) report(bad_, NonFiniteInput::kRewards, row);
    double sum = 0;
    for (int64_t end = length; end > 0;) {
      const int64_t first = (end - 1) / kTile * kTile;
      const int n = static_cast<int>(end - first);
      const float* x = buffer_[0];
      if (per_token) {
        x = load_tile(columns_[kTokenLevelRewardsInput], begin + first, n, buffer_[0]);
        if (any_not_finite(x, mask + first, n)) report(bad_, NonFiniteInput::kTokenRewards, row);
      }
      for (int i = n - 1; i >= 0; --i) {
        if (per_token && mask[first + i] != 0) sum += x[i];
        if (first + i == rewarded) sum += pass_.batch->rewards[row];
        group_.to_go[first + i] = sum;
      }
      end = first;
    }
  }

  // Adds the row's energies, and their products with the rewards to go, to the sums of the group.
  void add_energies(int64_t row) {
    const int64_t begin = view_.layout.begin(row);
    const int64_t length = view_.layout.length(row);
    const uint8_t* const mask = mask_of(row);
    double weight = 0;
    int64_t place = 0;
    for (int64_t first = 0; first < length; first += kTile) {
      const int n = static_cast<int>(length - first < kTile ? length - first : kTile);
      const float* const old = load_tile(columns_[kOldLogprobInput], begin + first, n, buffer_[0]);
      const float* const squared = load_tile(columns_[kSumPiSquaredInput], begin + first, n, buffer_[1]);
      const bool corrected = columns_[kRolloutIsWeightsInput].data != nullptr;
      const float* const weights =
          corrected ? load_tile(columns_[kRolloutIsWeightsInput], begin + first, n, buffer_[2]) : nullptr;
      for (int i = 0; i < n; ++i) {
        if (mask[first + i] == 0) continue;
        weight += f_.energy(old[i], squared[i], corrected ? weights[i] : 1.0f);
        const int64_t at = skips ? place++ : first + i;
        group_.weights[at] += weight;
        group_.weighted[at] += weight * group_.to_go[first + i];
      }
    }
  }

  // Writes the row's advantages and returns. Tokens have a baseline at the places before `compared`.
  void write(int64_t row, int64_t compared) {
    const int64_t begin = view_.layout.begin(row);
    const int64_t length = view_.layout.length(row);
    const uint8_t* const mask = mask_of(row);
    float* const out = pass_.outputs.advantages + begin;
    int64_t place = 0;
    for (int64_t i = 0; i < length; ++i) {
      const bool unmasked = mask[i] != 0;
      const int64_t at = skips ? place : i;
      place += unmasked ? 1 : 0;
      const double baseline = unmasked && at < compared ? group_.weighted[at] : 0.0;
      out[i] = unmasked ? static_cast<float>(group_.to_go[i] - baseline) : 0.0f;
    }
    if (!pass_.outputs.returns) return;
    for (int64_t i = 0; i < length; ++i)
      pass_.outputs.returns[begin + i] = static_cast<float>(group_.to_go[i]);
  }

  const F f_;
  const cpu::AdvantagePass& pass_;
  const BatchView& view_;
  const ColumnView* const columns_;
  const cpu::BaselineRows& group_;
  NonFiniteValue* const bad_;
  alignas(64) float buffer_[3][kTile];
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

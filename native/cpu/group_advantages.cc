// The phases of advantage functions over groups of rows: find the groups, score each, and spread the scores.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "advantage/draw.h"
#include "cpu/advantages.h"
#include "cpu/engine.h"

namespace policy_loss::cpu {
namespace {

// The number of groups that are scored by one item of the task (see pool.h).
constexpr int64_t kGroupsPerItem = 512;

// Returns the share of the rewards that are not 0. If all are 0, one of them counts as rewarded.
double rewarded_share(const std::vector<double>& rewards) {
  const auto zeros = std::count(rewards.begin(), rewards.end(), 0.0);
  const auto rows = static_cast<double>(rewards.size());
  return std::max(rows - static_cast<double>(zeros), 1.0) / rows;
}

}  // namespace

int64_t AdvantageEvaluation::next_group_phase() {
  if (phase_ == 1) return 1 + (needs_statistics_ || pass_.row_tokens ? chunks() : 0);
  if (collect_not_finite()) return 0;
  if (phase_ == 2) {
    if (!row_statistics_.empty()) batch_rewarded_ = rewarded_share(row_statistics_);
    rules_.resize(groups_.size());
    group_rows_.resize(groups_.size());
    if (groups_.size() > 0) return (groups_.size() + kGroupsPerItem - 1) / kGroupsPerItem;
    phase_ = 3;
  }
  if (phase_ == 3) {
    count_repeats();
    if (whitened_) whiten_scores();
    return outputs_.advantages ? chunks() : 0;
  }
  return 0;
}

// Finds the groups, and the rewards of their members (rows, or runs of rows). This is a single item of its
// phase, because it does not read tokens. The other items of the phase do.
void AdvantageEvaluation::find_members() {
  const int64_t rows = batch_.tokens.layout.rows;
  for (int64_t row = 0; batch_.rewards && row < rows; ++row) {
    if (std::isfinite(batch_.rewards[row])) continue;
    not_finite_ = {NonFiniteInput::kRewards, row};
    return;
  }
  groups_ = find_groups(rows, batch_.groups, batch_.runs);
  if (!batch_.rewards) return;
  member_rewards_.resize(groups_.member_count());
  for (int64_t member = 0; member < groups_.member_count(); ++member)
    member_rewards_[member] = batch_.rewards[groups_.last_row[member]];
  batch_std_ = moments_of(groups_.member_count(), [&](int64_t member) {
                 return member_rewards_[member];
               }).sample_std();
}

void AdvantageEvaluation::score_groups(int64_t item) {
  std::vector<double> values;
  with_function(
      function_.index, function_.options.data(),
      [&](const auto& f) {
        const int64_t first = item * kGroupsPerItem;
        const int64_t last = std::min(first + kGroupsPerItem, groups_.size());
        for (int64_t group = first; group < last; ++group) score_group(f, group, &values);
      },
      GroupAdvantages{});
}

// Reduces the rewards of a group's answers. They are ranked from the least likely to the most likely, and a
// likelier answer loses more of its reward.
template <class F>
void AdvantageEvaluation::penalise(const F& f, const int64_t* members, std::vector<double>* rewards) const {
  const auto size = static_cast<int64_t>(rewards->size());
  std::vector<int64_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double x = row_statistics_[members[a]], y = row_statistics_[members[b]];
    return x < y || (x == y && a < b);
  });
  for (int64_t rank = 0; rank < size; ++rank)
    (*rewards)[order[rank]] = f.penalised((*rewards)[order[rank]], rank, size);
}

// Draws which of a group's answers are left out, so that no more of them are below the mean than above it.
// Returns one flag per answer, or none if no answer is left out.
std::vector<bool> AdvantageEvaluation::surplus_of(int64_t group, const std::vector<double>& rewards) const {
  const auto size = static_cast<int64_t>(rewards.size());
  const double mean = moments_of(size, [&](int64_t i) { return rewards[i]; }).mean;
  std::vector<int64_t> negatives;
  for (int64_t i = 0; i < size; ++i)
    if (rewards[i] < mean) negatives.push_back(i);
  const int64_t surplus = 2 * static_cast<int64_t>(negatives.size()) - size;
  if (surplus <= 0) return {};
  std::vector<bool> left_out(size);
  draw_surplus(seed_, group, surplus, static_cast<int64_t>(negatives.size()), negatives.data());
  for (int64_t i = 0; i < surplus; ++i) left_out[negatives[i]] = true;
  return left_out;
}

template <class F>
void AdvantageEvaluation::score_group(const F& f, int64_t group, std::vector<double>* values) {
  const int64_t* const members = groups_.members.data() + groups_.offsets[group];
  const int64_t size = groups_.offsets[group + 1] - groups_.offsets[group];
  if constexpr (F::traits.has_reward_keys) {
    if (batch_.named_rewards) return score_named_rewards(f, group);
  }
  const auto reward = [&](int64_t i) {
    if constexpr (F::traits.sums_token_rewards)
      return row_statistics_[members[i]];
    else
      return member_rewards_[members[i]];
  };
  values->resize(size);
  for (int64_t i = 0; i < size; ++i) (*values)[i] = reward(i);
  const auto value = [&](int64_t i) { return (*values)[i]; };
  if constexpr (F::traits.has_rank_penalty)
    if (f.rank_penalty != 0 && size > 1) penalise(f, members, values);
  std::vector<bool> left_out;
  if constexpr (F::traits.has_balance)
    if (f.balance && size > 1) left_out = surplus_of(group, *values);

  GroupMoments moments = moments_of(size, value, [&](int64_t i) { return left_out.empty() || !left_out[i]; });
  moments.batch_std = batch_std_;
  if constexpr (F::traits.has_soft_baseline) {
    if (f.soft) moments.log_mean_exp = log_mean_exp(size, value, f.tau);
  }
  if constexpr (F::traits.has_token_mean)
    moments.token_mean = weighted_mean(size, value, [&](int64_t i) { return batch_.row_tokens[members[i]]; });
  if constexpr (F::traits.has_second) moments.second = second_largest(size, value);
  moments.batch_rewarded = batch_rewarded_;
  const GroupRule rule = f.rule(moments);
  rules_[group] = rule;
  double rows = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t member = members[i];
    rows += static_cast<double>(groups_.member_rows[member]);
    double score = rule.score(reward(i));
    if constexpr (F::traits.by_runs) {
      if (f.step_norm) score /= static_cast<double>(groups_.member_rows[member]);
    }
    const bool counts = rule.kept && (left_out.empty() || !left_out[i]);
    // If members are runs of rows, a run's score is stored at its last row here. count_repeats() copies it to
    // the run's other rows.
    outputs_.scores[groups_.last_row[member]] = counts ? static_cast<float>(score) : 0.0f;
    outputs_.repeats[groups_.last_row[member]] = rule.kept ? 1 : 0;
    if constexpr (F::traits.whitened) unwhitened_[member] = score;
  }
  group_rows_[group] = rows;
}

// Scores a group by the named rewards of the batch instead of its token rewards. A row's score is the
// weighted sum of its scores by each of these rewards.
template <class F>
void AdvantageEvaluation::score_named_rewards(const F& f, int64_t group) {
  const int64_t* const members = groups_.members.data() + groups_.offsets[group];
  const int64_t size = groups_.offsets[group + 1] - groups_.offsets[group];
  for (int64_t i = 0; i < size; ++i) {
    unwhitened_[members[i]] = 0;
    outputs_.repeats[members[i]] = 1;
  }
  for (int64_t k = 0; k < batch_.named; ++k) {
    const double* const rewards = batch_.named_rewards + k * batch_.tokens.layout.rows;
    const GroupRule rule = f.rule(moments_of(size, [&](int64_t i) { return rewards[members[i]]; }));
    for (int64_t i = 0; i < size; ++i)
      unwhitened_[members[i]] += batch_.reward_weights[k] * rule.score(rewards[members[i]]);
  }
}

// Whitens the rows' scores over the unmasked tokens of the batch. Each of these tokens has the score of its
// row.
void AdvantageEvaluation::whiten_scores() {
  const int64_t rows = batch_.tokens.layout.rows;
  Spread all;
  for (int64_t row = 0; row < rows; ++row) all.add({batch_.row_tokens[row], unwhitened_[row], 0});
  const Whitening whitening = all.whitening(kVerlTokens);
  for (int64_t row = 0; row < rows; ++row)
    outputs_.scores[row] = static_cast<float>(whitening.whiten(unwhitened_[row]));
}

// Computes what depends on all groups together: the metrics, and the number of times that each row counts.
void AdvantageEvaluation::count_repeats() {
  GroupTotals totals;
  for (int64_t group = 0; group < groups_.size(); ++group) totals.add(rules_[group], group_rows_[group]);
  finish_group_metrics(function_, totals, outputs_.values);
  if (!groups_.member_of_row.empty()) {
    for (int64_t row = 0; row < batch_.tokens.layout.rows; ++row) {
      const int64_t last = groups_.last_row[groups_.member_of_row[row]];
      outputs_.scores[row] = outputs_.scores[last];
      outputs_.repeats[row] = outputs_.repeats[last];
    }
  }
  with_function(
      function_.index, function_.options.data(),
      [&]<class F>(const F& f) {
        if constexpr (F::traits.has_duplicates) {
          if (!f.duplicates) return;
          std::vector<int64_t> kept;
          for (int64_t group = 0; group < groups_.size(); ++group)
            if (rules_[group].kept) kept.push_back(group);
          const auto count_again = [&](int64_t group) {
            for (int64_t at = groups_.offsets[group]; at < groups_.offsets[group + 1]; ++at)
              ++outputs_.repeats[groups_.members[at]];
          };
          draw_duplicates(seed_, groups_.size(), static_cast<int64_t>(kept.size()), kept.data(), count_again);
        }
      },
      GroupAdvantages{});
}

}  // namespace policy_loss::cpu

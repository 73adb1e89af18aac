#include "cpu/advantages.h"

#include <algorithm>

#include "cpu/engine.h"

namespace policy_loss::cpu {

void add_spreads(const Spread* spreads, int64_t rows, Spread* total) {
  for (int64_t row = 0; row < rows; ++row) total->add(spreads[row]);
}

AdvantageEvaluation::AdvantageEvaluation(AdvantageFunction function, const AdvantageBatch& batch,
                                         const AdvantageOutputs& outputs, uint64_t seed,
                                         double* not_finite_row)
    : function_(std::move(function)),
      batch_(batch),
      outputs_(outputs),
      seed_(seed),
      not_finite_row_(not_finite_row) {}

void AdvantageEvaluation::plan() {
  const int64_t rows = batch_.tokens.layout.rows;
  find_needs();
  const bool is_group = function_.shape == AdvantageShape::kGroup;
  const bool is_distillation = function_.shape == AdvantageShape::kDistill;
  const bool is_recurrence = function_.shape == AdvantageShape::kRecurrence;
  // Only what reads nothing of other tokens of a row can split one.
  const bool splits_rows = is_distillation || (is_group && !needs_statistics_ && !counts_tokens_);
  chunks_ = plan_chunks(batch_.tokens.layout, !splits_rows);
  bad_.resize(chunks_.size());
  if (needs_statistics_) row_statistics_.resize(rows);
  if (counts_tokens_) {
    row_tokens_.resize(rows);
    batch_.row_tokens = row_tokens_.data();
  }
  measured_ = whitened_ && is_recurrence && !batch_.spread;
  if (measured_ && !outputs_.spreads) {
    spreads_.resize(rows);
    outputs_.spreads = spreads_.data();
  }
  if (whitened_ && is_group) unwhitened_.resize(rows);
  if (is_distillation) {
    row_sums_.resize(2 * rows);
    partials_.resize(2 * chunks_.size());
  }
  if (is_group && !outputs_.scores) {
    scores_.resize(rows);
    outputs_.scores = scores_.data();
  }
  if (is_group && !outputs_.repeats) {
    repeats_.resize(rows);
    outputs_.repeats = repeats_.data();
  }
  pass_.index = function_.index;
  pass_.scale = 1;
  pass_.row_statistics = needs_statistics_ ? row_statistics_.data() : nullptr;
  pass_.row_tokens = counts_tokens_ ? row_tokens_.data() : nullptr;
  pass_.row_sums = row_sums_.data();
}

// Finds out which statistics of rows the function needs, and how it whitens.
void AdvantageEvaluation::find_needs() {
  const double* const options = function_.options.data();
  if (function_.shape == AdvantageShape::kGroup)
    with_function(
        function_.index, options,
        [&]<class F>(const F& f) {
          if constexpr (F::traits.sums_token_rewards) {
            needs_statistics_ = !(F::traits.has_reward_keys && batch_.named_rewards);
            pass_.statistic_of = kTokenLevelRewardsInput;
          }
          counts_tokens_ = F::traits.counts_tokens() && !batch_.row_tokens;
          whitened_ = F::traits.whitened;
          if constexpr (F::traits.has_rank_penalty) {
            needs_statistics_ = f.rank_penalty != 0;
            pass_.statistic_of = kOldLogprobInput;
          }
        },
        GroupAdvantages{});
  if (function_.shape == AdvantageShape::kRecurrence)
    with_function(
        function_.index, options,
        [&]<class F>(const F&) {
          whitened_ = F::traits.whitened;
          whitening_tokens_ = F::traits.whitening_tokens;
        },
        RecurrentAdvantages{});
}

bool AdvantageEvaluation::collect_not_finite() {
  for (const NonFiniteValue& bad : bad_) {
    if (bad.input == NonFiniteInput::kNone) continue;
    if (not_finite_.input == NonFiniteInput::kNone || bad.row < not_finite_.row) not_finite_ = bad;
  }
  if (not_finite_.input == NonFiniteInput::kNone) return false;
  *not_finite_row_ = static_cast<double>(not_finite_.row);
  return true;
}

int64_t AdvantageEvaluation::open_phase() {
  if (check_abort()) return 0;
  if (!is_planned_) {
    is_planned_ = true;
    return 1;
  }
  ++phase_;
  pass_.batch = &batch_;
  pass_.options = function_.options.data();
  pass_.outputs = outputs_;
  pass_.scores = outputs_.scores;
  switch (function_.shape) {
    case AdvantageShape::kGroup:
      return next_group_phase();
    case AdvantageShape::kRecurrence:
      return next_recurrence_phase();
    case AdvantageShape::kDistill:
      if (phase_ == 1 && chunks() > 0) return chunks();
      finish_distillation();
      return 0;
    case AdvantageShape::kBaseline:
      return next_baseline_phase();
  }
  return 0;
}

void AdvantageEvaluation::work(int64_t item) {
  if (check_abort()) return;
  if (phase_ == 0) return plan();
  switch (function_.shape) {
    case AdvantageShape::kGroup:
      if (phase_ == 1 && item == 0)
        find_members();
      else if (phase_ == 1)
        target()->find_row_statistics(pass_, chunks_[item - 1], &bad_[item - 1]);
      else if (phase_ == 2)
        score_groups(item);
      else
        target()->broadcast(pass_, chunks_[item]);
      break;
    case AdvantageShape::kRecurrence:
      if (measured_ && phase_ == 1)
        target()->measure(pass_, chunks_[item], outputs_.spreads, &bad_[item]);
      else
        target()->recur(pass_, chunks_[item], &bad_[item]);
      break;
    case AdvantageShape::kDistill:
      target()->distill(pass_, chunks_[item], &partials_[2 * item]);
      break;
    case AdvantageShape::kBaseline:
      if (phase_ == 1)
        find_members();
      else
        subtract_baselines(item);
      break;
  }
}

int64_t AdvantageEvaluation::next_recurrence_phase() {
  if (measured_ && phase_ == 1) {
    std::fill_n(outputs_.spreads, batch_.tokens.layout.rows, Spread{});
    return chunks();
  }
  if (collect_not_finite() || phase_ > (measured_ ? 2 : 1) || !outputs_.advantages) return 0;
  if (whitened_) {
    Spread all;
    if (measured_) {
      add_spreads(outputs_.spreads, batch_.tokens.layout.rows, &all);
    } else {
      all = *batch_.spread;
    }
    const Whitening whitening = all.whitening(whitening_tokens_);
    pass_.shift = whitening.shift();
    pass_.scale = whitening.scale;
  }
  return chunks();
}

int64_t AdvantageEvaluation::next_baseline_phase() {
  if (phase_ == 1) return 1;
  if (collect_not_finite() || phase_ > 2) return 0;
  bad_.assign(groups_.size(), {});
  return groups_.size();
}

void AdvantageEvaluation::subtract_baselines(int64_t group) {
  BaselineRows rows{};
  rows.rows = groups_.members.data() + groups_.offsets[group];
  rows.size = groups_.offsets[group + 1] - groups_.offsets[group];
  int64_t longest = 0;
  for (int64_t i = 0; i < rows.size; ++i)
    longest = std::max(longest, batch_.tokens.layout.length(rows.rows[i]));
  std::vector<double> memory(3 * longest);
  rows.weights = memory.data();
  rows.weighted = rows.weights + longest;
  rows.to_go = rows.weighted + longest;
  target()->subtract_baselines(pass_, rows, &bad_[group]);
}

void AdvantageEvaluation::finish_distillation() {
  const int64_t rows = batch_.tokens.layout.rows;
  for (int64_t i = 0; i < chunks(); ++i) {
    if (!chunks_[i].is_within_row()) continue;
    for (int k = 0; k < 2; ++k) row_sums_[2 * chunks_[i].first_row + k] += partials_[2 * i + k];
  }
  std::vector<double> divergences(rows), advantages(rows);
  for (int64_t row = 0; row < rows; ++row) {
    divergences[row] = row_sums_[2 * row];
    advantages[row] = row_sums_[2 * row + 1];
  }
  finish_distill_metrics(rows, divergences.data(), advantages.data(), outputs_.values);
}

}  // namespace policy_loss::cpu

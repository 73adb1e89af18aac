// Converts the engine's functions to the plain structs of the CUDA interface (cuda.h), and the results of
// that interface to the values of a call.
#pragma once

#include "cuda/cuda.h"
#include "engine/advantages.h"
#include "engine/function.h"
#include "engine/groups.h"

namespace policy_loss::cuda {

// Returns the request for a call. It points to the function's loss object or program, so the function must
// outlive it. `with_grad` tells whether the call computes a gradient, and `with_part` whether write_part()
// will write its sums. The batch may then be a part of a larger one, as with a normalizer, and metrics of the
// batch would be wrong.
inline Request request_of(const PreparedFunction& function, const Coefficients& coefficients,
                          const Normalizer& normalizer, bool with_grad, bool with_part = false) {
  Request request;
  request.terms = function.function();
  request.loss = function.loss();
  if (const program::Program* program = function.program(with_grad)) {
    request.program = program->view();
    request.other_program = function.program(!with_grad)->view();
  }
  request.columns = columns_of(function.function());
  request.coefficients = coefficients;
  request.normalizer = normalizer;
  request.batch_metrics = request.program.batch_metrics > 0 && !normalizer.given && !with_part;
  return request;
}

// Computes the values of a call from a device's result and writes them to outputs.values. If outputs.part is
// not null, also writes the sums there (see write_part()). Bit i of the returned number is set if values[i]
// exists.
inline uint64_t finish_result(const PreparedFunction& function, const Request& request, const Result& result,
                              const Outputs& outputs) {
  const BatchCounts& counts = request.normalizer.given ? request.normalizer.counts : result.counts;
  ExactSums sums;
  sums.add(result.sums);
  if (function.info() && function.info()->traits.by_pairs) {
    sums.add(ExactSums::kLoss, result.pair_loss);
    for (int k = 0; k < 3; ++k) sums.add(ExactSums::kMetric + k, result.pair_metric[k]);
  }
  if (outputs.part) write_part(function, sums, request.coefficients, outputs.part);
  return finish(function, counts, request.coefficients, sums.rounded(),
                result.has_batch_metrics ? result.batch_metrics : nullptr, outputs.values);
}

// Returns the request for a call. It points to the function's options, so the function must outlive it.
inline AdvantageRequest request_of(const AdvantageFunction& function, uint64_t seed) {
  return {function.shape, function.index, function.options.data(), seed};
}

// Converts a batch to AdvantageInputs. Finds the groups of the batch on the host, and owns them.
class FoundInputs {
 public:
  explicit FoundInputs(const AdvantageBatch& batch) {
    inputs_.tokens = batch.tokens;
    inputs_.rewards = batch.rewards;
    inputs_.baselines = batch.baselines;
    inputs_.named_rewards = batch.named_rewards;
    inputs_.reward_weights = batch.reward_weights;
    inputs_.named = batch.named;
    if (batch.groups) inputs_.groups = find(batch, nullptr, &groups_);
    if (batch.groups && batch.runs) inputs_.runs = find(batch, batch.runs, &runs_);
  }
  FoundInputs(const FoundInputs&) = delete;

  const AdvantageInputs& inputs() const { return inputs_; }

 private:
  static GroupsView find(const AdvantageBatch& batch, const int32_t* runs, Groups* found) {
    *found = find_groups(batch.tokens.layout.rows, batch.groups, runs);
    GroupsView view;
    view.size = found->size();
    view.member_count = found->member_count();
    view.offsets = found->offsets.data();
    view.members = found->members.data();
    view.last_row = found->last_row.data();
    view.member_rows = found->member_rows.data();
    view.member_of_row = runs ? found->member_of_row.data() : nullptr;
    if (batch.rewards)
      view.batch_std = moments_of(view.member_count, [&](int64_t member) {
                         return batch.rewards[found->last_row[member]];
                       }).sample_std();
    return view;
  }

  Groups groups_, runs_;
  AdvantageInputs inputs_;
};

// Holds the numbers from which the metrics of an advantage function are computed. A call writes the numbers,
// and finish() computes the metrics.
class AdvantageIngredients {
 public:
  // Sets the pointers of *call, so that the call writes the numbers into this object. `rows` and `groups` are
  // the sizes of the batch.
  void ask(const AdvantageFunction& function, int64_t rows, int64_t groups, AdvantageCall* call) {
    if (function.shape == AdvantageShape::kGroup) groups_.resize(groups);
    if (function.shape == AdvantageShape::kDistill) divergences_.resize(rows);
    advantages_.resize(divergences_.size());
    call->groups = groups_.data();
    call->row_divergences = divergences_.data();
    call->row_advantages = advantages_.data();
  }

  // Computes the metrics and writes them in the order of advantage_value_names().
  void finish(const AdvantageFunction& function, double* values) const {
    if (function.shape == AdvantageShape::kGroup) {
      GroupTotals totals;
      for (const GroupOutcome& outcome : groups_) {
        GroupRule rule;
        static_assert(sizeof rule.metric == sizeof outcome.metric);
        for (int k = 0; k < kGroupMetrics; ++k) rule.metric[k] = outcome.metric[k];
        rule.kept = outcome.kept;
        totals.add(rule, outcome.rows);
      }
      finish_group_metrics(function, totals, values);
    }
    if (function.shape == AdvantageShape::kDistill)
      finish_distill_metrics(static_cast<int64_t>(divergences_.size()), divergences_.data(),
                             advantages_.data(), values);
  }

 private:
  std::vector<GroupOutcome> groups_;
  std::vector<double> divergences_, advantages_;
};

}  // namespace policy_loss::cuda

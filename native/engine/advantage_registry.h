// The lists of all advantage functions, by their shapes; everything that walks over them walks these.
#pragma once

#include <type_traits>

#include "advantage/distill.h"
#include "advantage/group.h"
#include "advantage/recurrence.h"
#include "engine/options.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

using GroupAdvantages = TypeList<Grpo, StepWiseGrpo, Rloo, Reinforce, OpmdAdvantage, Asymre, RecAdvantage>;
using RecurrentAdvantages = TypeList<Gae, ReinforcePlusPlus, Remax>;
using DistillAdvantages = TypeList<OnPolicyDistill, Jsd>;

// Calls visit with the function itself, where it is of the list's shape.
template <class Visit, class... F>
void with_advantage(int function, const double* options, Visit visit, TypeList<F...>) {
  int index = 0;
  ((index++ == function ? visit(make_function<F>(options)) : void()), ...);
}

// What a group function is found to have.
template <class F>
constexpr int group_metric_count = 0;
template <class F>
requires requires {
  F::metrics;
}
constexpr int group_metric_count<F> = static_cast<int>(sizeof F::metrics / sizeof F::metrics[0]);
template <class F>
constexpr bool is_by_runs = requires {
  F::by_runs;
};
template <class F>
constexpr bool is_of_token_rewards = requires {
  F::sums_token_rewards;
};
template <class F>
constexpr bool has_rank_penalty = requires(const F& f) {
  f.rank_penalty;
};
template <class F>
constexpr bool has_balance = requires(const F& f) {
  f.balance;
};
template <class F>
constexpr bool has_soft_baseline = requires(const F& f) {
  f.soft;
};
template <class F>
constexpr bool has_duplicates = requires(const F& f) {
  f.duplicates;
};
template <class F>
constexpr bool has_baseline_column = requires {
  F::reads_baseline;
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

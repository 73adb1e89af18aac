// Advantage functions with a baseline per token. A token's advantage is its reward to go minus a baseline:
// the mean reward to go of the same token in the rows of its group. The rows are weighted by the energy of
// their tokens so far, which stands for the squared length of the gradient. All sums are in float64.
//
// Optimal token baseline: arXiv 2602.07078. The formulas follow verl.
#pragma once

#include "advantage/advantage.h"
#include "math/precise.h"

namespace policy_loss {

// The properties of a function with a baseline per token.
struct BaselineTraits {
  // The place at which tokens of different rows are compared: a token's number among its row's unmasked
  // tokens, or (if false) its column.
  bool skips_masked = false;
};

// Facts about the rows of one group that take part.
struct BaselineGroup {
  int64_t rows = 0;
  int64_t longest = 0, second = 0;  // the two largest numbers of unmasked tokens

  PL_FN void add(int64_t tokens) {
    ++rows;
    if (tokens > longest) {
      second = longest;
      longest = tokens;
    } else if (tokens > second) {
      second = tokens;
    }
  }
};

}  // namespace policy_loss

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct OptimalTokenBaseline {
  static constexpr const char* name = "verl/optimal_token_baseline";
  struct Options {
    double handle_zero_tail, epsilon;
  };
  static constexpr Field<Options> fields[] = {
      {"handle_zero_tail", &Options::handle_zero_tail},
      {"epsilon", &Options::epsilon},
  };
  static constexpr BaselineTraits traits{};

  bool handle_zero_tail;
  double epsilon;

  explicit OptimalTokenBaseline(const Options& o)
      : handle_zero_tail(o.handle_zero_tail != 0), epsilon(o.epsilon) {}

  // Returns the energy of one token.
  PL_FN double energy(double old_logprob, double sum_pi_squared, double importance_weight) const {
    return (1.0 - 2.0 * precise_exp(old_logprob) + sum_pi_squared) * (importance_weight * importance_weight);
  }

  // Returns the baseline of one place. `weighted` is the sum of energy·(reward to go) over the group's rows,
  // and `weights` the sum of the energies.
  PL_FN double baseline(double weighted, double weights) const { return weighted / (weights + epsilon); }

  // Returns the number of places of a row that have a baseline. They are its first ones. `tokens` is the
  // row's number of unmasked tokens and `end` the number of its places. Beyond the second longest row, the
  // longest would be compared with itself only.
  PL_FN int64_t compared_places(const BaselineGroup& group, int64_t tokens, int64_t end) const {
    if (group.rows < 2) return 0;
    const bool is_alone = tokens == group.longest && tokens > group.second;
    return handle_zero_tail && is_alone && group.second < end ? group.second : end;
  }
};

// The optimal token baseline for rows in which masked tokens, such as the results of tools, lie between
// unmasked ones.
struct TirOptimalTokenBaseline : OptimalTokenBaseline {
  static constexpr const char* name = "verl/tir_optimal_token_baseline";
  static constexpr BaselineTraits traits{.skips_masked = true};

  using OptimalTokenBaseline::OptimalTokenBaseline;
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

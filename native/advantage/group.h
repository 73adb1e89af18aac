// Advantage functions over groups of rows. The rows of a group answer the same prompt. A row's score is its
// reward, shifted and scaled by statistics of the group's rewards. Every unmasked token gets its row's score
// as its advantage.
//
// Formulas and metrics follow Trinity-RFT; those in verl_group.h follow verl. GRPO: arXiv 2402.03300, RLOO:
// arXiv 2402.14740, OPMD: arXiv 2505.17826, AsymRE: arXiv 2506.20520, REC: arXiv 2509.24203.
#pragma once

#include <cmath>

#include "advantage/advantage.h"

namespace policy_loss {

constexpr int kGroupMetrics = 3;

// The properties of a group function. If a property has_… is set, the function must have the members that the
// property's comment names. The first of these members switches the property on or off at run time.
struct GroupTraits {
  const char* metrics[kGroupMetrics] = {};  // the names of GroupRule::metric
  bool by_runs = false;                     // scores runs of rows (see engine/groups.h) instead of rows
  bool sums_token_rewards = false;          // a row's reward is the sum of its token rewards

  bool has_rank_penalty = false;   // rank_penalty, penalised(): lowers the rewards of likely answers
  bool has_balance = false;        // balance: leaves out surplus rewards that are below the mean
  bool has_soft_baseline = false;  // soft, tau: needs GroupMoments::log_mean_exp
  bool has_duplicates = false;     // duplicates: kept groups replace dropped ones
  bool has_token_mean = false;     // needs GroupMoments::token_mean
  bool has_second = false;         // needs GroupMoments::second
  bool has_rewarded = false;       // needs GroupMoments::batch_rewarded
  bool has_reward_keys = false;  // adds the scores of several rewards if the batch has AdvantageBatch::named
  bool whitened = false;         // scores are whitened over the unmasked tokens of the batch

  // Returns whether the function needs the number of unmasked tokens of each row.
  PL_FN constexpr bool counts_tokens() const { return has_token_mean || whitened; }

  PL_FN constexpr int metric_count() const {
    int count = 0;
    while (count < kGroupMetrics && metrics[count]) ++count;
    return count;
  }
};

}  // namespace policy_loss

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Statistics of the rewards of one group. A function with has_balance can leave out some of the rewards.
struct GroupMoments {
  double size = 0;            // the number of rewards
  double count = 0;           // the number of rewards that are not left out
  double mean = 0;            // the mean of the rewards that are not left out
  double squares = 0;         // Σ (R − mean)² over the rewards that are not left out
  double log_mean_exp = 0;    // tau·ln(mean of e^(R/tau)), if the function has a soft baseline
  double batch_std = 1;       // the sample deviation of all rewards of the batch; 1 for a single reward
  double token_mean = 0;      // the mean of the rewards, each weighted by its row's unmasked tokens
  double second = 0;          // the second largest reward; in a group of one, the only reward
  double batch_rewarded = 1;  // the share of the batch's rewards that are not 0; at least one counts as such

  PL_FN double sample_std() const { return count > 1 ? ::sqrt(squares / (count - 1)) : 1.0; }
};

// Returns the statistics of the numbers value(0) to value(n − 1), except those for which counts(i) is false.
//
// The numbers are added in order. Rewards are compared with the mean, so it must have the same bits on every
// device. The sum is over the differences from the first number, so that the mean of equal numbers is exact.
template <class Value, class Counts>
PL_FN GroupMoments moments_of(int64_t n, Value value, Counts counts) {
  GroupMoments moments;
  moments.size = static_cast<double>(n);
  double first = 0;
  double sum = 0;
  PL_NO_UNROLL
  for (int64_t i = 0; i < n; ++i) {
    const double x = value(i);
    if (!counts(i)) continue;
    if (moments.count == 0) first = x;
    sum += x - first;
    moments.count += 1;
  }
  if (moments.count == 0) return moments;
  moments.mean = first + sum / moments.count;
  PL_NO_UNROLL
  for (int64_t i = 0; i < n; ++i) {
    const double d = value(i) - moments.mean;
    if (counts(i)) moments.squares += d * d;
  }
  return moments;
}
template <class Value>
PL_FN GroupMoments moments_of(int64_t n, Value value) {
  return moments_of(n, value, [](int64_t) { return true; });
}

// Returns tau·ln(mean of e^(x/tau)), where x runs through the numbers value(0) to value(n − 1). n must be at
// least 1.
template <class Value>
PL_FN double log_mean_exp(int64_t n, Value value, double tau) {
  double top = value(0);
  PL_NO_UNROLL
  for (int64_t i = 0; i < n; ++i) {
    const double x = value(i);
    if (top / tau < x / tau) top = x;
  }
  double sum = 0;
  PL_NO_UNROLL
  for (int64_t i = 0; i < n; ++i) sum += ::exp((value(i) - top) / tau);
  return top + tau * ::log(sum / static_cast<double>(n));
}

// Returns the mean of the numbers value(0) to value(n − 1), weighted by weight(i), or 0 if all weights are 0.
template <class Value, class Weight>
PL_FN double weighted_mean(int64_t n, Value value, Weight weight) {
  double sum = 0, weights = 0;
  PL_NO_UNROLL
  for (int64_t i = 0; i < n; ++i) {
    const double w = weight(i);
    sum += w * value(i);
    weights += w;
  }
  return weights > 0 ? sum / weights : 0.0;
}

// Returns the second largest of the numbers value(0) to value(n − 1). If the largest number appears twice, it
// is also the second largest. n must be at least 1; for n = 1, the only number is returned.
template <class Value>
PL_FN double second_largest(int64_t n, Value value) {
  double first = value(0);
  double second = n > 1 ? -HUGE_VAL : first;
  PL_NO_UNROLL
  for (int64_t i = 1; i < n; ++i) {
    const double x = value(i);
    if (x > first) {
      second = first;
      first = x;
    } else if (x > second) {
      second = x;
    }
  }
  return second;
}

// Returns the mean log-probability of a row's unmasked tokens, or 0 if the row has none. `sum` is the sum of
// their log-probabilities and `count` their number. No epsilon is added to `count`, because rows are ranked
// by the result, and equal means must stay equal.
PL_FN double mean_logprob(double sum, int64_t count) {
  return count > 0 ? sum / static_cast<double>(count) : 0.0;
}

// Determines the scores of one group: a row with reward R gets the score (R − shift)·scale, but at least
// `least`. If `kept` is false, the rows of the group are dropped and get the score 0.
struct GroupRule {
  double shift = 0, scale = 1;
  double least = -HUGE_VAL;
  bool kept = true;
  double metric[kGroupMetrics] = {};

  PL_FN double score(double reward) const { return at_least((reward - shift) * scale, least); }
};

constexpr const char* kStdLevels[] = {"group", "batch", nullptr};
constexpr const char* kBaselines[] = {"mean", "logavgexp", nullptr};
constexpr const char* kDrops[] = {"none", "balance", nullptr};

// The rule that GRPO and step-wise GRPO share. If std_threshold is not NaN, the rule drops two kinds of
// groups: those with only one reward, and those whose standard deviation is at most std_threshold.
struct Normalisation {
  double epsilon, std_threshold;
  bool of_batch;

  PL_FN GroupRule rule(const GroupMoments& m) const {
    const double mean = m.count > 1 ? m.mean : 0.0;
    const double std = m.sample_std();
    GroupRule rule;
    rule.shift = mean;
    rule.scale = 1.0 / ((of_batch ? m.batch_std : std) + epsilon);
    rule.kept = std_threshold != std_threshold || (m.count > 1 && !(std <= std_threshold));
    rule.metric[0] = mean;
    rule.metric[1] = std;
    return rule;
  }
};

// GRPO: (R − mean) / (std + ε).
struct Grpo {
  static constexpr const char* name = "grpo";
  struct Options {
    double epsilon, std_threshold, duplicate_experiences, rank_penalty, std_cal_level;
  };
  static constexpr Field<Options> fields[] = {
      {"epsilon", &Options::epsilon},
      {"std_threshold", &Options::std_threshold},
      {"duplicate_experiences", &Options::duplicate_experiences},
      {"rank_penalty", &Options::rank_penalty},
      {"std_cal_level", &Options::std_cal_level, kStdLevels},
  };
  static constexpr GroupTraits traits{
      .metrics = {"reward_mean", "reward_std"}, .has_rank_penalty = true, .has_duplicates = true};

  Normalisation normalisation;
  bool duplicates;
  double rank_penalty;  // 0: no penalty; see penalised()

  explicit Grpo(const Options& o)
      : normalisation{o.epsilon, o.std_threshold, o.std_cal_level == 1},
        duplicates(o.duplicate_experiences != 0 && o.std_threshold == o.std_threshold),
        rank_penalty(o.rank_penalty) {}

  // Returns a reward after the penalty for likely answers. `rank` is the number of answers in the group that
  // are less likely than this one, and `size` is the number of all answers in the group.
  PL_FN double penalised(double reward, int64_t rank, int64_t size) const {
    return reward * (1.0 - static_cast<double>(rank) / static_cast<double>(size) * rank_penalty);
  }

  PL_FN GroupRule rule(const GroupMoments& m) const { return normalisation.rule(m); }
};

// GRPO over runs, which consist of several rows. The reward of a run is the reward of its last row. All rows
// of a run get the run's score.
struct StepWiseGrpo {
  static constexpr const char* name = "step_wise_grpo";
  struct Options {
    double epsilon, enable_step_norm, std_threshold, std_cal_level;
  };
  static constexpr Field<Options> fields[] = {
      {"epsilon", &Options::epsilon},
      {"enable_step_norm", &Options::enable_step_norm},
      {"std_threshold", &Options::std_threshold},
      {"std_cal_level", &Options::std_cal_level, kStdLevels},
  };
  static constexpr GroupTraits traits{.metrics = {"reward_mean", "reward_std"}, .by_runs = true};

  Normalisation normalisation;
  bool step_norm;  // divides a score by the number of rows in the run

  explicit StepWiseGrpo(const Options& o)
      : normalisation{o.epsilon, o.std_threshold, o.std_cal_level == 1}, step_norm(o.enable_step_norm != 0) {}

  PL_FN GroupRule rule(const GroupMoments& m) const { return normalisation.rule(m); }
};

// RLOO: a row with reward R gets the score R − (mean of the group's other rewards).
struct Rloo {
  static constexpr const char* name = "rloo";
  using Options = NoOptions;
  static constexpr GroupTraits traits{.sums_token_rewards = true};

  explicit Rloo(const Options&) {}

  PL_FN GroupRule rule(const GroupMoments& m) const {
    GroupRule rule;
    if (m.count > 1) {
      rule.shift = m.mean;
      rule.scale = m.count / (m.count - 1);
    }
    return rule;
  }
};

// REINFORCE: a row's score is its reward.
struct Reinforce {
  static constexpr const char* name = "reinforce";
  using Options = NoOptions;
  static constexpr GroupTraits traits{.metrics = {"reward_mean"}};

  explicit Reinforce(const Options&) {}

  PL_FN GroupRule rule(const GroupMoments& m) const {
    GroupRule rule;
    rule.metric[0] = m.mean;
    return rule;
  }
};

// OPMD: a row with reward R gets the score R − baseline. The baseline is the group's mean reward, or
// tau·ln(mean of e^(R/tau)), which is a soft maximum.
struct OpmdAdvantage {
  static constexpr const char* name = "opmd";
  struct Options {
    double opmd_baseline, tau;
  };
  static constexpr Field<Options> fields[] = {
      {"opmd_baseline", &Options::opmd_baseline, kBaselines},
      {"tau", &Options::tau},
  };
  static constexpr GroupTraits traits{.metrics = {"group_baseline", "reward_mean"},
                                      .has_soft_baseline = true};

  bool soft;
  double tau;

  explicit OpmdAdvantage(const Options& o) : soft(o.opmd_baseline == 1), tau(o.tau) {}

  PL_FN GroupRule rule(const GroupMoments& m) const {
    GroupRule rule;
    if (m.count > 1) rule.shift = soft ? m.log_mean_exp : m.mean;
    rule.metric[0] = rule.shift;
    rule.metric[1] = m.mean;
    return rule;
  }
};

// AsymRE: a row with reward R gets the score R − (mean + shift). A negative shift makes more advantages
// positive.
struct Asymre {
  static constexpr const char* name = "asymre";
  struct Options {
    double baseline_shift;
  };
  static constexpr Field<Options> fields[] = {{"baseline_shift", &Options::baseline_shift}};
  static constexpr GroupTraits traits{.metrics = {"group_baseline", "reward_mean"}};

  double baseline_shift;

  explicit Asymre(const Options& o) : baseline_shift(o.baseline_shift) {}

  PL_FN GroupRule rule(const GroupMoments& m) const {
    GroupRule rule;
    if (m.count > 1) rule.shift = m.mean + baseline_shift;
    rule.metric[0] = rule.shift;
    rule.metric[1] = rule.shift - baseline_shift;  // as in the source; −baseline_shift for a group of one
    return rule;
  }
};

// REC: a row with reward R gets the score R − mean, optionally divided by the group's population standard
// deviation. If more than half of the rewards are below the mean, it can leave out the surplus.
struct RecAdvantage {
  static constexpr const char* name = "rec";
  struct Options {
    double epsilon, std_normalize, drop;
  };
  static constexpr Field<Options> fields[] = {
      {"epsilon", &Options::epsilon},
      {"std_normalize", &Options::std_normalize},
      {"drop", &Options::drop, kDrops},
  };
  static constexpr GroupTraits traits{.metrics = {"drop_balance", "reward_mean", "reward_std"},
                                      .has_balance = true};

  double epsilon;
  bool normalise, balance;

  explicit RecAdvantage(const Options& o)
      : epsilon(o.epsilon), normalise(o.std_normalize != 0), balance(o.drop == 1) {}

  PL_FN GroupRule rule(const GroupMoments& m) const {
    const double std = m.count > 1 ? ::sqrt(m.squares / m.count) : 1.0;
    GroupRule rule;
    rule.shift = m.count > 1 ? m.mean : 0.0;
    rule.scale = normalise ? 1.0 / (std + epsilon) : 1.0;
    rule.metric[0] = (m.size - m.count) / m.size;
    rule.metric[1] = rule.shift;
    rule.metric[2] = std;
    return rule;
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

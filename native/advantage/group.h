// Advantage functions over groups: a group's rows answer the same prompt, and a row's score is its reward,
// shifted and scaled by what the group's rewards are. Every unmasked token of a row has the row's score.
//
// Formulas and metrics are Trinity-RFT's; GRPO: arXiv 2402.03300, RLOO: arXiv 2402.14740, OPMD: arXiv
// 2505.17826, AsymRE: arXiv 2506.20520, REC: arXiv 2509.24203.
#pragma once

#include <cmath>

#include "advantage/advantage.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// What a function is told of a group's rewards, in float64.
struct GroupMoments {
  double size = 0;          // rows of the group
  double count = 0;         // of which so many count
  double mean = 0;          // of those
  double squares = 0;       // Σ (R − mean)² over those
  double log_mean_exp = 0;  // ln of the mean of e^(R/tau), times tau; where the function asks for it
  double batch_std = 1;     // sample deviation of all rewards of the batch; 1 where there is only one

  PL_FN double sample_std() const { return count > 1 ? ::sqrt(squares / (count - 1)) : 1.0; }
};

// The moments of n numbers, value(i), or of those of them for which counts(i) holds. In their order, which
// decides the last bit of a mean that rewards are then compared with: on every device the same. Summed as
// distances from the first, so that equal numbers are their mean to the last bit.
template <class Value, class Counts>
PL_FN GroupMoments moments_of(int64_t n, Value value, Counts counts) {
  GroupMoments moments;
  moments.size = static_cast<double>(n);
  double first = 0;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double x = value(i);
    if (!counts(i)) continue;
    if (moments.count == 0) first = x;
    sum += x - first;
    moments.count += 1;
  }
  if (moments.count == 0) return moments;
  moments.mean = first + sum / moments.count;
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

// tau times the logarithm of the mean of e^(x/tau) over n numbers, at least one.
template <class Value>
PL_FN double log_mean_exp(int64_t n, Value value, double tau) {
  double top = value(0);
  for (int64_t i = 0; i < n; ++i) {
    const double x = value(i);
    if (top / tau < x / tau) top = x;
  }
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += ::exp((value(i) - top) / tau);
  return top + tau * ::log(sum / static_cast<double>(n));
}

// A row's mean log-probability, exactly, as rows are ranked by it and equal ones stay as they stand; 0 of a
// row without an unmasked token.
PL_FN double mean_logprob(double sum, int64_t count) {
  return count > 0 ? sum / static_cast<double>(count) : 0.0;
}

constexpr int kGroupMetrics = 3;

// A row's score is (R − shift)·scale. A group that is not kept scores 0, and its rows are dropped.
struct GroupRule {
  double shift = 0, scale = 1;
  bool kept = true;
  double metric[kGroupMetrics] = {};

  PL_FN double score(double reward) const { return (reward - shift) * scale; }
};

constexpr const char* kStdLevels[] = {"group", "batch", nullptr};
constexpr const char* kBaselines[] = {"mean", "logavgexp", nullptr};
constexpr const char* kDrops[] = {"none", "balance", nullptr};

// What GRPO and its step-wise form share. A threshold that is not given is NaN.
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

// (R − mean) / (std + ε).
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
  static constexpr const char* metrics[] = {"reward_mean", "reward_std"};

  Normalisation normalisation;
  bool duplicates;      // kept groups stand in for dropped ones
  double rank_penalty;  // takes that share of a group's rewards, more of the likelier answers; 0: none

  explicit Grpo(const Options& o)
      : normalisation{o.epsilon, o.std_threshold, o.std_cal_level == 1},
        duplicates(o.duplicate_experiences != 0 && o.std_threshold == o.std_threshold),
        rank_penalty(o.rank_penalty) {}

  // A reward as the group's moments see it, of the answer that so many of the group's are less likely than.
  PL_FN double penalised(double reward, int64_t rank, int64_t size) const {
    return reward * (1.0 - static_cast<double>(rank) / static_cast<double>(size) * rank_penalty);
  }

  PL_FN GroupRule rule(const GroupMoments& m) const { return normalisation.rule(m); }
};

// GRPO over the last rewards of runs of several rows each, whose rows all get the run's score.
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
  static constexpr const char* metrics[] = {"reward_mean", "reward_std"};
  static constexpr bool by_runs = true;

  Normalisation normalisation;
  bool step_norm;  // divide by the run's number of rows

  explicit StepWiseGrpo(const Options& o)
      : normalisation{o.epsilon, o.std_threshold, o.std_cal_level == 1}, step_norm(o.enable_step_norm != 0) {}

  PL_FN GroupRule rule(const GroupMoments& m) const { return normalisation.rule(m); }
};

struct NoOptions {};

// The reward less the mean of the group's other rewards.
struct Rloo {
  static constexpr const char* name = "rloo";
  using Options = NoOptions;
  static constexpr bool sums_token_rewards = true;

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

// The reward itself.
struct Reinforce {
  static constexpr const char* name = "reinforce";
  using Options = NoOptions;
  static constexpr const char* metrics[] = {"reward_mean"};

  explicit Reinforce(const Options&) {}

  PL_FN GroupRule rule(const GroupMoments& m) const {
    GroupRule rule;
    rule.metric[0] = m.mean;
    return rule;
  }
};

// R − mean, or R less the soft maximum tau·ln mean e^(R/tau).
struct OpmdAdvantage {
  static constexpr const char* name = "opmd";
  struct Options {
    double opmd_baseline, tau;
  };
  static constexpr Field<Options> fields[] = {
      {"opmd_baseline", &Options::opmd_baseline, kBaselines},
      {"tau", &Options::tau},
  };
  static constexpr const char* metrics[] = {"group_baseline", "reward_mean"};

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

// R − (mean + shift): with a negative shift more rewards count as good.
struct Asymre {
  static constexpr const char* name = "asymre";
  struct Options {
    double baseline_shift;
  };
  static constexpr Field<Options> fields[] = {{"baseline_shift", &Options::baseline_shift}};
  static constexpr const char* metrics[] = {"group_baseline", "reward_mean"};

  double baseline_shift;

  explicit Asymre(const Options& o) : baseline_shift(o.baseline_shift) {}

  PL_FN GroupRule rule(const GroupMoments& m) const {
    GroupRule rule;
    if (m.count > 1) rule.shift = m.mean + baseline_shift;
    rule.metric[0] = rule.shift;
    rule.metric[1] = rule.shift - baseline_shift;  // as the source reports it, of a group of one too
    return rule;
  }
};

// R − mean, over the population's deviation if wanted; surplus negatives may be left out.
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
  static constexpr const char* metrics[] = {"drop_balance", "reward_mean", "reward_std"};

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

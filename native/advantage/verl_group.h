// verl's advantage functions over groups of rows. A row's reward is the sum of its token rewards, masked
// tokens included. A group's only row has mean 0 and standard deviation 1, unless a comment says otherwise.
//
// REINFORCE++: arXiv 2501.03262, Dr. GRPO: arXiv 2503.20783, Pass@k: arXiv 2503.19595, OPO: arXiv 2505.23585,
// GPG: arXiv 2504.02546, GDPO: arXiv 2601.05242.
#pragma once

#include "advantage/group.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The base of the functions that can divide by the group's standard deviation.
struct VerlNormalised {
  struct Options {
    double epsilon, norm_adv_by_std_in_grpo;
  };
  static constexpr Field<Options> fields[] = {
      {"epsilon", &Options::epsilon},
      {"norm_adv_by_std_in_grpo", &Options::norm_adv_by_std_in_grpo},
  };

  double epsilon;
  bool normalise;

  explicit VerlNormalised(const Options& o) : epsilon(o.epsilon), normalise(o.norm_adv_by_std_in_grpo != 0) {}

  // Returns the factor by which scores are multiplied.
  PL_FN double scale(const GroupMoments& m) const {
    return normalise ? 1.0 / (m.sample_std() + epsilon) : 1.0;
  }
};

// GRPO: (R − mean) / (std + ε), or R − mean, which is Dr. GRPO.
struct VerlGrpo : VerlNormalised {
  static constexpr const char* name = "verl/grpo_vectorized";
  static constexpr GroupTraits traits{.sums_token_rewards = true};

  using VerlNormalised::VerlNormalised;

  PL_FN GroupRule rule(const GroupMoments& m) const {
    return {.shift = m.count > 1 ? m.mean : 0.0, .scale = scale(m)};
  }
};

// GDPO: the weighted sum of the GRPO scores of several rewards, whitened over the tokens of the batch.
struct VerlGdpo : VerlGrpo {
  static constexpr const char* name = "verl/gdpo";
  static constexpr GroupTraits traits{.sums_token_rewards = true, .has_reward_keys = true, .whitened = true};

  using VerlGrpo::VerlGrpo;
};

// REINFORCE++ with a baseline: R − mean, whitened over the tokens of the batch.
struct VerlReinforceBaseline {
  static constexpr const char* name = "verl/reinforce_plus_plus_baseline";
  using Options = NoOptions;
  static constexpr GroupTraits traits{.sums_token_rewards = true, .whitened = true};

  explicit VerlReinforceBaseline(const Options&) {}

  PL_FN GroupRule rule(const GroupMoments& m) const { return {.shift = m.count > 1 ? m.mean : 0.0}; }
};

// RLOO: R − (mean of the group's other rewards). A group's only row gets 0.
struct VerlRloo {
  static constexpr const char* name = "verl/rloo_vectorized";
  using Options = NoOptions;
  static constexpr GroupTraits traits{.sums_token_rewards = true};

  explicit VerlRloo(const Options&) {}

  PL_FN GroupRule rule(const GroupMoments& m) const {
    return {.shift = m.mean, .scale = m.count > 1 ? m.count / (m.count - 1) : 1.0};
  }
};

// Pass@k: the best row of a group gets the distance of its reward from the second best. Other rows get 0, and
// so do all rows if several are best.
struct VerlPassK : VerlNormalised {
  static constexpr const char* name = "verl/grpo_passk";
  static constexpr GroupTraits traits{.sums_token_rewards = true, .has_second = true};

  using VerlNormalised::VerlNormalised;

  PL_FN GroupRule rule(const GroupMoments& m) const {
    return {.shift = m.second, .scale = scale(m), .least = 0};
  }
};

// OPO: R − (mean of the group's rewards, weighted by the rows' unmasked tokens).
struct VerlOpo {
  static constexpr const char* name = "verl/opo";
  using Options = NoOptions;
  static constexpr GroupTraits traits{.sums_token_rewards = true, .has_token_mean = true};

  explicit VerlOpo(const Options&) {}

  PL_FN GroupRule rule(const GroupMoments& m) const { return {.shift = m.count > 1 ? m.token_mean : 0.0}; }
};

// GPG: (R − mean) / f_norm, divided by the share of the batch's rewards that are not 0.
struct VerlGpg {
  static constexpr const char* name = "verl/gpg";
  struct Options {
    double f_norm;
  };
  static constexpr Field<Options> fields[] = {{"f_norm", &Options::f_norm}};
  static constexpr GroupTraits traits{.sums_token_rewards = true, .has_rewarded = true};

  double f_norm;

  explicit VerlGpg(const Options& o) : f_norm(o.f_norm) {}

  PL_FN GroupRule rule(const GroupMoments& m) const {
    return {.shift = m.count > 1 ? m.mean : 0.0, .scale = 1.0 / (m.batch_rewarded * f_norm)};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

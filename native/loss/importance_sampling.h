// The importance-weighted policy gradient. The loss of a token is −advantage·ratio, where the logarithm of
// the ratio is clipped to [−20, 20]. Nothing else is clipped.
//
// Source: Trinity-RFT's importance_sampling_policy_loss (after the Tinker library).
#pragma once

#include "loss/loss.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct ImportanceSampling {
  static constexpr const char* name = "importance_sampling";
  using Options = NoOptions;
  static constexpr LossTraits traits{.columns = reads(kOldLogprob) | reads(kAdvantages), .token_metrics = 2};
  static constexpr Metric metrics[] = {{"pg_loss", Metric::kLoss},
                                       {"ratio/mean", Metric::kTokenMean, 0},
                                       {"approx_kl", Metric::kTokenMean, 1}};
  using Row = NoRow;

  explicit ImportanceSampling(const Options&) {}

  PL_FN TokenTerm token(const NoRow&, const Token& t) const {
    const float d = t.logprob - t.old_logprob;
    const float bounded = clip(d, -20.0f, 20.0f);
    const float ratio = exp_bounded(bounded);
    const float value = -t.advantage * ratio;
    return {value, value * clip_derivative(d, -20.0f, 20.0f), ratio, -bounded};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

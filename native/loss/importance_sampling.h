// The importance-weighted policy gradient. The loss of a token is −advantage·ratio, where the logarithm of
// the ratio is clipped to [−20, 20]. Nothing else is clipped.
//
// Source: Trinity-RFT's importance_sampling_policy_loss (after the Tinker library).
#pragma once

#include "loss/ratio.h"

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
    const Ratio ratio = bounded_ratio_of(t);
    const float value = -t.advantage * ratio.value;
    return {value, value * bounded_log_derivative(ratio.log), ratio.value, -bounded_log(ratio.log)};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

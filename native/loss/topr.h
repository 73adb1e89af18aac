// TOPR: tapered off-policy REINFORCE (arXiv 2503.14286). Tokens whose advantage exceeds a threshold have the
// weight 1. The others are weighted by the importance ratio, clipped to [0, 1].
#pragma once

#include "loss/ratio.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct Topr {
  static constexpr const char* name = "topr";
  struct Options {
    double advantage_threshold;
  };
  static constexpr Field<Options> fields[] = {{"advantage_threshold", &Options::advantage_threshold}};
  static constexpr LossTraits traits{.columns = reads(kOldLogprob) | reads(kAdvantages), .token_metrics = 2};
  static constexpr Metric metrics[] = {{"topr_loss", Metric::kLoss},
                                       {"avg_alpha", Metric::kTokenMean, 0},
                                       {"avg_ratio", Metric::kTokenMean, 1}};
  using Row = NoRow;

  float threshold;

  explicit Topr(const Options& o) : threshold(static_cast<float>(o.advantage_threshold)) {}

  PL_FN TokenTerm token(const NoRow&, const Token& t) const {
    const Ratio ratio = ratio_of(t);
    const float alpha = t.advantage <= threshold ? clip(ratio.value, 0.0f, 1.0f) : 1.0f;
    const float derivative = -alpha * t.advantage;
    return {derivative * t.logprob, derivative, alpha, ratio.value};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

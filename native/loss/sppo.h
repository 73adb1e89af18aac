// sPPO: the loss of a token is −A·d, where A is its advantage and d is its log ratio. A token contributes
// only if its log ratio lies within a symmetric range.
//
// Source: Trinity-RFT's sppo_policy_loss.
#pragma once

#include <cmath>

#include "loss/loss.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct Sppo {
  static constexpr const char* name = "sppo";
  struct Options {
    double epsilon;
  };
  static constexpr Field<Options> fields[] = {{"epsilon", &Options::epsilon}};
  static constexpr LossTraits traits{.columns = reads(kOldLogprob) | reads(kAdvantages), .token_metrics = 1};
  static constexpr Metric metrics[] = {{"pg_clipfrac", Metric::kTokenMean, 0}, {"pg_loss", Metric::kLoss}};
  using Row = NoRow;

  float range;  // the largest |log ratio| of a token that contributes

  explicit Sppo(const Options& o) : range(static_cast<float>(std::log1p(o.epsilon))) {}

  PL_FN TokenTerm token(const NoRow&, const Token& t) const {
    const float d = t.logprob - t.old_logprob;
    const bool inside = (d >= -range) & (d <= range);
    const float derivative = inside ? -t.advantage : 0.0f;
    return {inside ? derivative * d : 0.0f, derivative, indicator(!inside)};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

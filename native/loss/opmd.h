// OPMD: online policy mirror descent in its pairwise form. The loss of a token is −A·logprob / (1 + tau),
// where A is the advantage.
//
// Source: Trinity-RFT's opmd_policy_loss (and arXiv 2505.17826, appendix).
#pragma once

#include "loss/loss.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct Opmd {
  static constexpr const char* name = "opmd";
  struct Options {
    double tau;
  };
  static constexpr Field<Options> fields[] = {{"tau", &Options::tau}};
  static constexpr LossTraits traits{.columns = reads(kAdvantages)};
  static constexpr Metric metrics[] = {{"opmd_loss", Metric::kLoss}};
  using Row = NoRow;

  float scale;

  explicit Opmd(const Options& o) : scale(static_cast<float>(1.0 / (1.0 + o.tau))) {}

  PL_FN TokenTerm token(const NoRow&, const Token& t) const {
    const float derivative = -t.advantage * scale;
    return {derivative * t.logprob, derivative};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

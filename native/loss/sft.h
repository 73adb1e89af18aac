// Supervised fine-tuning: the negative log-likelihood in three forms. Sft is unweighted. SftIs weights each
// token by its probability p (importance sampling). SftPhi weights it by φ = p(1 − p), and drops the gradient
// of tokens whose p exceeds a cutoff (CHORD, arXiv 2508.11408). No gradient flows through the weights.
#pragma once

#include <cmath>
#include <limits>

#include "loss/loss.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct Sft {
  static constexpr const char* name = "sft";
  using Options = NoOptions;
  static constexpr LossTraits traits{};
  static constexpr Metric metrics[] = {{"sft_loss", Metric::kLoss}};
  using Row = NoRow;

  explicit Sft(const Options&) {}

  PL_FN TokenTerm token(const NoRow&, const Token& t) const { return {-t.logprob, -1.0f}; }
};

struct SftIs {
  static constexpr const char* name = "sft_is";
  using Options = NoOptions;
  static constexpr LossTraits traits{};
  static constexpr Metric metrics[] = {{"sft_is_loss", Metric::kLoss}};
  using Row = NoRow;

  explicit SftIs(const Options&) {}

  PL_FN TokenTerm token(const NoRow&, const Token& t) const {
    const float derivative = -exp_flushed(t.logprob);
    return {derivative * t.logprob, derivative};
  }
};

struct SftPhi {
  static constexpr const char* name = "sft_phi";
  struct Options {
    double cutoff_prob;
  };
  static constexpr Field<Options> fields[] = {{"cutoff_prob", &Options::cutoff_prob}};
  static constexpr LossTraits traits{};
  static constexpr Metric metrics[] = {{"sft_phi_loss", Metric::kLoss}};
  using Row = NoRow;

  float cutoff;  // ln cutoff_prob, or Infinity without a cutoff

  explicit SftPhi(const Options& o)
      : cutoff(o.cutoff_prob < 1.0 ? static_cast<float>(std::log(o.cutoff_prob))
                                   : std::numeric_limits<float>::infinity()) {}

  PL_FN TokenTerm token(const NoRow&, const Token& t) const {
    const Exponential p = exp_and_residual(t.logprob);
    // The weight p·(1 − p), computed without cancellation near p = 1.
    const float phi = p.value * -(p.residual + t.logprob);
    const bool cut = t.logprob > cutoff;
    return {-phi * (cut ? cutoff : t.logprob), cut ? 0.0f : -phi};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

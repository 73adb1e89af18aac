// SAPO: a sigmoid gate on the ratio in place of a hard clip, with a temperature for each sign of the
// advantage (arXiv 2511.20347). Trinity-RFT detaches the gate and multiplies by logprob; the paper
// differentiates it.
#pragma once

#include "loss/loss.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct Sapo {
  static constexpr const char* name = "sapo";
  struct Options {
    double tau_pos, tau_neg, differentiate_gate;
  };
  static constexpr Field<Options> fields[] = {
      {"tau_pos", &Options::tau_pos},
      {"tau_neg", &Options::tau_neg},
      {"differentiate_gate", &Options::differentiate_gate},
  };
  static constexpr unsigned columns = reads(kOldLogprob) | reads(kAdvantages);
  static constexpr int token_metrics = 4;
  static constexpr Metric metrics[] = {{"sapo_loss", Metric::kLoss},
                                       {"ppo_kl", Metric::kTokenMean, 0},
                                       {"avg_soft_gate", Metric::kTokenMean, 1},
                                       {"avg_ratio", Metric::kTokenMean, 2},
                                       {"pos_adv_frac", Metric::kTokenMean, 3}};
  using Row = NoRow;

  float tau_pos, tau_neg, scale_pos, scale_neg;
  float differentiates;  // 1 or 0

  explicit Sapo(const Options& o)
      : tau_pos(static_cast<float>(o.tau_pos)),
        tau_neg(static_cast<float>(o.tau_neg)),
        scale_pos(static_cast<float>(4.0 / o.tau_pos)),
        scale_neg(static_cast<float>(4.0 / o.tau_neg)),
        differentiates(o.differentiate_gate != 0 ? 1.0f : 0.0f) {}

  // The gate at a ratio, σ(τ(r − 1))·4/τ, and how fast it opens with the ratio, 4·σ(1 − σ).
  struct Gate {
    float value, slope;
  };
  PL_FN Gate gate(float ratio, bool positive) const {
    const float e = exp((positive ? tau_pos : tau_neg) * (1.0f - ratio));
    const float open = 1.0f / (1.0f + e);
    const float closing = e < 1.0f ? e * open : 1.0f - open;  // 1 − σ where nothing cancels
    return {open * (positive ? scale_pos : scale_neg), 4.0f * open * closing};
  }

  PL_FN TokenTerm token(const NoRow&, const Token& t) const {
    const float d = t.logprob - t.old_logprob;
    const float ratio = exp(d);
    const bool positive = t.advantage > 0.0f;
    const Gate g = gate(ratio, positive);
    const float weight = -t.advantage * g.value;
    // Where the slope is 0 the ratio may be Infinity: 0, not NaN.
    const float through_gate = g.slope == 0.0f ? 0.0f : -t.advantage * g.slope * ratio;
    return {differentiates != 0.0f ? weight : weight * t.logprob,
            differentiates != 0.0f ? through_gate : weight,
            -d,
            g.value,
            ratio,
            indicator(positive)};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

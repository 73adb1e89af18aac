// SAPO: a sigmoid gate on the ratio instead of a hard clip, with one temperature for positive and one for
// negative advantages (arXiv 2511.20347). The paper differentiates the gate. Trinity-RFT detaches it, so that
// no gradient flows through the gate, and multiplies it by logprob. The option differentiate_gate selects the
// paper's form.
#pragma once

#include "loss/ratio.h"

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
  static constexpr LossTraits traits{
      .columns = reads(kOldLogprob) | reads(kAdvantages), .token_metrics = 4, .has_simpler_form = true};
  static constexpr Metric metrics[] = {{"sapo_loss", Metric::kLoss},
                                       {"ppo_kl", Metric::kTokenMean, 0},
                                       {"avg_soft_gate", Metric::kTokenMean, 1},
                                       {"avg_ratio", Metric::kTokenMean, 2},
                                       {"pos_adv_frac", Metric::kTokenMean, 3}};
  using Row = NoRow;

  float tau_pos, tau_neg, scale_pos, scale_neg;
  float differentiates;  // 1 or 0
  bool is_simpler;

  explicit Sapo(const Options& o)
      : tau_pos(static_cast<float>(o.tau_pos)),
        tau_neg(static_cast<float>(o.tau_neg)),
        scale_pos(static_cast<float>(4.0 / o.tau_pos)),
        scale_neg(static_cast<float>(4.0 / o.tau_neg)),
        differentiates(o.differentiate_gate != 0 ? 1.0f : 0.0f),
        is_simpler(o.differentiate_gate == 0) {}

  // The value of the gate at a ratio r, σ(τ(r − 1))·4/τ, and its derivative with respect to r, 4·σ(1 − σ). σ
  // is the sigmoid function, and τ is the temperature.
  struct Gate {
    float value, slope;
  };
  PL_FN Gate gate(float ratio, bool positive) const {
    // Clipping the argument changes nothing: beyond these bounds the gate is fully open or fully closed in
    // float32.
    const float e = exp_bounded(clip((positive ? tau_pos : tau_neg) * (1.0f - ratio), -87.0f, 80.0f));
    const float open = 1.0f / (1.0f + e);
    const float closing = e * open;  // 1 − σ, without cancellation
    return {open * (positive ? scale_pos : scale_neg), 4.0f * open * closing};
  }

  PL_FN TokenTerm token(const NoRow&, const Token& t) const { return term<true>(t); }

  // The version of the loss whose gate is detached. It does not need the derivative of the gate.
  struct Simpler;

  template <bool may_differentiate>
  PL_FN TokenTerm term(const Token& t) const {
    const Ratio ratio = ratio_of(t);
    const bool positive = t.advantage > 0.0f;
    const Gate g = gate(ratio.value, positive);
    const float weight = -t.advantage * g.value;
    // Limiting the ratio to 1.8e19 (about 2^64) avoids an infinite ratio times a slope of 0, which would give
    // NaN. No result changes, because the gate is fully open long before the ratio gets that large.
    const float through_gate = -t.advantage * (g.slope * at_most(ratio.value, 1.8e19f));
    const bool held = !may_differentiate | (differentiates == 0.0f);
    return {held ? weight * t.logprob : weight,
            held ? weight : through_gate,
            -ratio.log,
            g.value,
            ratio.value,
            indicator(positive)};
  }
};

struct Sapo::Simpler : Sapo {
  explicit Simpler(const Sapo& sapo) : Sapo(sapo) {}
  PL_FN TokenTerm token(const NoRow&, const Token& t) const { return term<false>(t); }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

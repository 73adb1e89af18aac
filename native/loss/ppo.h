// PPO's clipped surrogate with a dual clip for negative advantages (arXiv 1707.06347, 1912.09729).
//
// The variant with sequence masking also drops tokens with a negative advantage if they are in a row on which
// the policy has drifted too far from the policy that sampled the row.
#pragma once

#include "loss/ratio.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct PpoOptions {
  double clip_range_low, clip_range_high, clip_ratio_c;
};

struct Ppo {
  static constexpr const char* name = "ppo";
  using Options = PpoOptions;
  static constexpr Field<Options> fields[] = {
      {"clip_range_low", &Options::clip_range_low},
      {"clip_range_high", &Options::clip_range_high},
      {"clip_ratio_c", &Options::clip_ratio_c},
  };
  static constexpr LossTraits traits{.columns = reads(kOldLogprob) | reads(kAdvantages), .token_metrics = 3};
  static constexpr Metric metrics[] = {{"pg_clipfrac", Metric::kTokenMean, 0},
                                       {"pg_clipfrac_lower", Metric::kTokenMean, 1},
                                       {"ppo_kl", Metric::kTokenMean, 2},
                                       {"pg_loss", Metric::kLoss}};
  using Row = NoRow;

  float low, high, dual;

  explicit Ppo(const Options& o)
      : low(static_cast<float>(1.0 - o.clip_range_low)),
        high(static_cast<float>(1.0 + o.clip_range_high)),
        dual(static_cast<float>(o.clip_ratio_c)) {}

  PL_FN TokenTerm token(const NoRow&, const Token& t) const {
    const Ratio ratio = bounded_ratio_of(t);
    const float log = bounded_log(ratio.log);
    const float unclipped = -t.advantage * ratio.value;
    const float clipped = -t.advantage * clip(ratio.value, low, high);
    const float upper = unclipped < clipped ? clipped : unclipped;
    const float lower = -t.advantage * dual;
    const bool at_lower = (t.advantage < 0.0f) & (upper > lower);
    const bool flat = at_lower | (unclipped < clipped);
    return {at_lower ? lower : upper, flat ? 0.0f : unclipped * bounded_log_derivative(ratio.log),
            indicator(unclipped < clipped), indicator(at_lower), -log};
  }
};

struct PpoSequenceMasking {
  static constexpr const char* name = "ppo_sequence_masking";
  struct Options : PpoOptions {
    double delta_sequence_masking;
  };
  static constexpr Field<Options> fields[] = {
      {"clip_range_low", &Options::clip_range_low},
      {"clip_range_high", &Options::clip_range_high},
      {"clip_ratio_c", &Options::clip_ratio_c},
      {"delta_sequence_masking", &Options::delta_sequence_masking},
  };
  // As in Trinity-RFT, the metric `masked_tokens` counts all tokens of a row that have a negative advantage,
  // even masked ones such as padding.
  static constexpr LossTraits traits{.columns = Ppo::traits.columns,
                                     .token_metrics = Ppo::traits.token_metrics,
                                     .row_metrics = 2,
                                     .row_sums = RowSums::kAlways,
                                     .counts_negatives = true};
  static constexpr Metric metrics[] = {{"pg_clipfrac", Metric::kTokenMean, 0},
                                       {"pg_clipfrac_lower", Metric::kTokenMean, 1},
                                       {"ppo_kl", Metric::kTokenMean, 2},
                                       {"pg_loss", Metric::kLoss},
                                       {"seq_mask/masked_tokens", Metric::kRowPerToken, 0},
                                       {"seq_mask/mean_sequence_kl", Metric::kRowMean, 1}};
  struct Row {
    double kl;
    bool drop_negative;
  };

  Ppo ppo;
  double delta;

  explicit PpoSequenceMasking(const Options& o) : ppo(o), delta(o.delta_sequence_masking) {}

  PL_FN double row_term(const Token& t) const { return -bounded_log(t.logprob - t.old_logprob); }

  PL_FN Row row(double sum, double count) const {
    const double kl = sum / (count + 1e-10);
    return {kl, kl > delta};
  }

  PL_FN void row_metric(const Row& row, double, double negatives, double* out) const {
    out[0] = row.drop_negative ? negatives : 0.0;
    out[1] = row.kl;
  }

  PL_FN TokenTerm token(const Row& row, const Token& t) const {
    TokenTerm term = ppo.token({}, t);
    const bool dropped = row.drop_negative & (t.advantage < 0.0f);
    term.value = dropped ? 0.0f : term.value;
    term.derivative = dropped ? 0.0f : term.derivative;
    return term;
  }
};

// A version of a loss that takes the current policy as the old policy. The ratio is then 1, and the gradient
// is the plain policy gradient.
template <class Base>
struct OnPolicy : Base {
  static constexpr LossTraits traits = Base::traits.without(reads(kOldLogprob));
  using Base::Base;

  PL_FN double row_term(const Token& t) const {
    return Base::row_term(Token{t.logprob, t.logprob, t.ref_logprob, t.advantage});
  }
  PL_FN TokenTerm token(const typename Base::Row& row, const Token& t) const {
    return Base::token(row, Token{t.logprob, t.logprob, t.ref_logprob, t.advantage});
  }
};

struct PpoOnPolicy : OnPolicy<Ppo> {
  static constexpr const char* name = "ppo_on_policy";
  using OnPolicy::OnPolicy;
};

struct PpoSequenceMaskingOnPolicy : OnPolicy<PpoSequenceMasking> {
  static constexpr const char* name = "ppo_sequence_masking_on_policy";
  using OnPolicy::OnPolicy;
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

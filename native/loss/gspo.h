// GSPO: PPO's clipped surrogate with one ratio per sequence, the geometric mean of the ratios of its tokens
// (arXiv 2507.18071). This is the token-level form of GSPO: each token uses the sequence's ratio, but has its
// own gradient.
#pragma once

#include "loss/loss.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct Gspo {
  static constexpr const char* name = "gspo";
  struct Options {
    double clip_range_low, clip_range_high;
  };
  static constexpr Field<Options> fields[] = {
      {"clip_range_low", &Options::clip_range_low},
      {"clip_range_high", &Options::clip_range_high},
  };
  static constexpr LossTraits traits{.columns = reads(kOldLogprob) | reads(kAdvantages),
                                     .token_metrics = 2,
                                     .row_metrics = 1,
                                     .row_sums = RowSums::kAlways};
  static constexpr Metric metrics[] = {{"pg_clipfrac", Metric::kTokenMean, 0},
                                       {"ppo_kl", Metric::kTokenMean, 1},
                                       {"ppo_kl_seq", Metric::kRowMean, 0},
                                       {"pg_loss", Metric::kLoss}};
  struct Row {
    double mean;
    float ratio, clipped_ratio;
  };

  float low, high;

  explicit Gspo(const Options& o)
      : low(static_cast<float>(1.0 - o.clip_range_low)), high(static_cast<float>(1.0 + o.clip_range_high)) {}

  PL_FN double row_term(const Token& t) const { return static_cast<double>(t.logprob) - t.old_logprob; }

  PL_FN Row row(double sum, double count) const {
    const double mean = sum / (count + 1e-8);
    const float ratio = exp(static_cast<float>(mean));
    return {mean, ratio, clip(ratio, low, high)};
  }

  PL_FN void row_metric(const Row& row, double, double, double* out) const { out[0] = -row.mean; }

  PL_FN TokenTerm token(const Row& row, const Token& t) const {
    const float unclipped = mul_no_nan(-t.advantage, row.ratio);
    const float clipped = -t.advantage * row.clipped_ratio;
    const bool is_clipped = unclipped < clipped;
    return {is_clipped ? clipped : unclipped, is_clipped ? 0.0f : unclipped, indicator(is_clipped),
            t.old_logprob - t.logprob};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// CISPO: the policy gradient, weighted by a clipped importance ratio (arXiv 2506.13585). The ratio is
// detached, which means that no gradient flows through it. Clipping therefore never removes a token's
// gradient. Only the paper's optional mask drops tokens.
#pragma once

#include <limits>

#include "loss/ratio.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct Cispo {
  static constexpr const char* name = "cispo";
  struct Options {
    double clip_range_low, clip_range_high, enable_mask_clip, mask_clip_range_low, mask_clip_range_high;
  };
  static constexpr Field<Options> fields[] = {
      {"clip_range_low", &Options::clip_range_low},
      {"clip_range_high", &Options::clip_range_high},
      {"enable_mask_clip", &Options::enable_mask_clip},
      {"mask_clip_range_low", &Options::mask_clip_range_low},
      {"mask_clip_range_high", &Options::mask_clip_range_high},
  };
  static constexpr LossTraits traits{.columns = reads(kOldLogprob) | reads(kAdvantages), .token_metrics = 2};
  static constexpr Metric metrics[] = {{"cispo_loss", Metric::kLoss},
                                       {"ppo_kl", Metric::kTokenMean, 0},
                                       {"unmasked_frac", Metric::kTokenMean, 1}};
  using Row = NoRow;

  float low, high;
  float mask_low, mask_high;  // infinite when the mask is off

  explicit Cispo(const Options& o)
      : low(static_cast<float>(1.0 - o.clip_range_low)),
        high(static_cast<float>(1.0 + o.clip_range_high)),
        mask_low(o.enable_mask_clip != 0 ? static_cast<float>(1.0 - o.mask_clip_range_low)
                                         : -std::numeric_limits<float>::infinity()),
        mask_high(o.enable_mask_clip != 0 ? static_cast<float>(1.0 + o.mask_clip_range_high)
                                          : std::numeric_limits<float>::infinity()) {}

  PL_FN TokenTerm token(const NoRow&, const Token& t) const {
    const Ratio ratio = ratio_of(t);
    // The mask drops a token with a positive advantage if its ratio is too high, and a token with a negative
    // advantage if its ratio is too low.
    const float kept = t.advantage > 0.0f ? indicator(ratio.value <= mask_high)
                                          : indicator((ratio.value >= mask_low) | (t.advantage == 0.0f));
    const float derivative = kept != 0.0f ? -t.advantage * clip(ratio.value, low, high) : 0.0f;
    return {derivative * t.logprob, derivative, -ratio.log, kept};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

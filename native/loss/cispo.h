// CISPO: the policy gradient weighted by a clipped, detached importance ratio (arXiv 2506.13585). Since the
// ratio is detached, clipping never removes a token's gradient. The paper's optional mask does drop tokens.
#pragma once

#include <limits>

#include "loss/loss.h"

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
    const float d = t.logprob - t.old_logprob;
    const float ratio = exp_flushed(d);
    // With a positive advantage, the mask drops tokens whose ratio is too high; with a negative one, those
    // whose ratio is too low.
    const float kept = t.advantage > 0.0f ? indicator(ratio <= mask_high)
                                          : indicator((ratio >= mask_low) | (t.advantage == 0.0f));
    const float derivative = kept != 0.0f ? -t.advantage * clip(ratio, low, high) : 0.0f;
    return {derivative * t.logprob, derivative, -d, kept};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// The KL estimator corrected_k3: k3 multiplied by the importance ratio of the current policy to the policy
// that sampled the tokens. The ratio is clipped to [0, 2]. The gradient flows through both factors. Source:
// Trinity-RFT's CorrectedK3Fn.
#pragma once

#include "kl/k3.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct CorrectedK3 {
  static constexpr const char* name = "corrected_k3";
  static constexpr bool reads_old_logprob = true;

  PL_FN static KlTerm token(float logprob, float ref_logprob, float old_logprob) {
    const KlTerm k3 = K3::token(logprob, ref_logprob, 0.0f);
    const float ratio = exp_flushed(logprob - old_logprob);
    const float bounded = clip(ratio, 0.0f, 2.0f);
    // For a ratio r below 2, the derivative of r·k3 is r·(k3 + k3'), which equals −r·δ. Computing it as −r·δ
    // avoids the cancellation in the sum. Above 2 the clipped ratio is constant.
    return {bounded * k3.value, ratio > 2.0f ? bounded * k3.derivative : ratio * (logprob - ref_logprob)};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// The KL estimator bias_corrected_k3: k3 multiplied by the importance ratio r of the current policy to the
// policy that sampled the tokens. The gradient flows through both factors. Source: DeepSeek-V3.2 (arXiv
// 2512.02556) and TRL's use_bias_correction_kl.
#pragma once

#include "kl/k3.h"
#include "math/elementary.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct BiasCorrectedK3 {
  static constexpr const char* name = "bias_corrected_k3";
  static constexpr bool reads_old_logprob = true;

  PL_FN static KlTerm token(float logprob, float ref_logprob, float old_logprob) {
    // Where the policy agrees with the reference policy, both products are 0, even if the ratio overflows.
    const float largest = logprob == ref_logprob ? 3.4e38f : kInfinity;
    const float ratio = at_most(exp_flushed(logprob - old_logprob), largest);
    // The derivative r·(k3 + k3') equals −r·δ, which does not cancel.
    return {ratio * K3::token(logprob, ref_logprob, 0.0f).value, ratio * (logprob - ref_logprob)};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

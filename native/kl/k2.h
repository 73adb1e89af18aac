// The KL estimator k2: δ²/2, where δ = ref_logprob − logprob. If the policy itself sampled the tokens, the
// expected gradient of k2 equals the gradient of the true divergence (Schulman, "Approximating KL
// divergence", 2020).
#pragma once

#include "kl/kl.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct K2 {
  static constexpr const char* name = "k2";
  static constexpr bool reads_old_logprob = false;

  PL_FN static KlTerm token(float logprob, float ref_logprob, float) {
    const float delta = ref_logprob - logprob;
    return {0.5f * delta * delta, -delta};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

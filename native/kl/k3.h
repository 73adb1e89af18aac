// The KL estimator k3: e^δ − 1 − δ, where δ = ref_logprob − logprob. It is unbiased and never negative
// (Schulman, "Approximating KL divergence", 2020).
#pragma once

#include "kl/kl.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct K3 {
  static constexpr const char* name = "k3";
  static constexpr bool reads_old_logprob = false;

  PL_FN static KlTerm token(float logprob, float ref_logprob, float) {
    const float delta = ref_logprob - logprob;
    const float value = exp_residual(delta);
    return {value, -(value + delta)};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

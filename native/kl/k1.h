// The KL estimator k1: −δ, where δ = ref_logprob − logprob. It is unbiased but has a high variance (Schulman,
// "Approximating KL divergence", 2020).
#pragma once

#include "kl/kl.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct K1 {
  static constexpr const char* name = "k1";
  static constexpr bool reads_old_logprob = false;

  PL_FN static KlTerm token(float logprob, float ref_logprob, float) { return {logprob - ref_logprob, 1.0f}; }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

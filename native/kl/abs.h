// The KL estimator abs: |δ|, where δ = ref_logprob − logprob. Its derivative at δ = 0 is 0.
#pragma once

#include "kl/kl.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct Abs {
  static constexpr const char* name = "abs";
  static constexpr bool reads_old_logprob = false;

  PL_FN static KlTerm token(float logprob, float ref_logprob, float) {
    const float difference = logprob - ref_logprob;
    return {difference < 0.0f ? -difference : difference,
            difference == 0.0f ? 0.0f : (difference < 0.0f ? -1.0f : 1.0f)};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

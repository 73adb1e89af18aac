// The KL estimator low_var_kl: k3 with δ = ref_logprob − logprob clipped to [−20, 20] and the result clipped
// to [−10, 10], as in verl and Trinity-RFT.
#pragma once

#include "kl/kl.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct LowVarKl {
  static constexpr const char* name = "low_var_kl";
  static constexpr bool reads_old_logprob = false;

  PL_FN static KlTerm token(float logprob, float ref_logprob, float) {
    const float delta = ref_logprob - logprob;
    const float bounded = clip(delta, -20.0f, 20.0f);
    const float value = exp_residual(bounded);
    return {clip(value, -10.0f, 10.0f), -(value + bounded) * clip_derivative(delta, -20.0f, 20.0f) *
                                            clip_derivative(value, -10.0f, 10.0f)};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

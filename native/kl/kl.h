// The contract of a KL estimator. For each token, it estimates in nats how far the policy diverges from the
// reference policy. It returns the estimate and the derivative of the estimate with respect to logprob. In
// this folder, δ stands for ref_logprob − logprob.
#pragma once

#include "columns.h"
#include "math/scalar.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct KlTerm {
  float value, derivative;
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

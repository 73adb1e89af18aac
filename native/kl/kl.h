// The contract of a KL estimator. For each token it estimates in nats how far the policy diverges from the
// reference policy. It returns the estimate and its derivative with respect to logprob. In this folder, δ =
// ref_logprob − logprob.
#pragma once

#include "columns.h"
#include "math/scalar.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct KlTerm {
  float value, derivative;
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

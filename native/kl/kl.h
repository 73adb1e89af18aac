// What a KL estimator is: per token, an estimate in nats of the divergence of the policy from the reference,
// and its derivative with respect to logprob. δ = ref_logprob − logprob throughout.
#pragma once

#include "math/scalar.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct KlTerm {
  float value, derivative;
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

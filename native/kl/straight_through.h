// The straight-through variants of KL estimators, as in verl: the value is that of the estimator, and the
// derivative is that of k2, logprob − ref_logprob. On policy, the expectation of this derivative is the
// gradient of the true divergence, which does not hold for the other estimators' own derivatives.
#pragma once

#include "kl/abs.h"
#include "kl/k1.h"
#include "kl/k2.h"
#include "kl/k3.h"
#include "kl/low_var_kl.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

template <class Base>
struct StraightThrough {
  using Value = Base;  // an estimator with the same value, so that both can share code that needs only it
  static constexpr bool reads_old_logprob = Base::reads_old_logprob;

  PL_FN static KlTerm token(float logprob, float ref_logprob, float old_logprob) {
    return {Base::token(logprob, ref_logprob, old_logprob).value,
            K2::token(logprob, ref_logprob, old_logprob).derivative};
  }
};

struct StraightK1 : StraightThrough<K1> {
  static constexpr const char* name = "k1+";
};
struct StraightAbs : StraightThrough<Abs> {
  static constexpr const char* name = "abs+";
};
struct StraightLowVarKl : StraightThrough<LowVarKl> {
  static constexpr const char* name = "low_var_kl+";
};
// It equals bias_corrected_k3 if the policy itself sampled the tokens, so that the ratio is 1.
struct StraightK3 : StraightThrough<K3> {
  static constexpr const char* name = "bias_corrected_k3_on_policy";
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Advantage functions for distillation. For each token they compute d = teacher_logprob − old_logprob: the
// token's log-probability under the teacher, minus its log-probability under the policy that sampled it.
//
// Sources: Trinity-RFT; arXiv 2306.13649 for on-policy distillation.
#pragma once

#include "advantage/advantage.h"

namespace policy_loss {

// The properties of a distillation function.
struct DistillTraits {
  const char* divergence;  // the name of its divergence in the metrics
};

}  // namespace policy_loss

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The result for one token. For the metrics, `divergence` is summed over each row.
struct DistillTerm {
  float divergence, advantage;
};

struct OnPolicyDistill {
  static constexpr const char* name = "on_policy_distill";
  struct Options {
    double kl_coef;
  };
  static constexpr Field<Options> fields[] = {{"kl_coef", &Options::kl_coef}};
  static constexpr DistillTraits traits{.divergence = "kl"};

  float kl_coef;

  explicit OnPolicyDistill(const Options& o) : kl_coef(static_cast<float>(o.kl_coef)) {}

  PL_FN DistillTerm token(float old_logprob, float teacher_logprob) const {
    const float d = teacher_logprob - old_logprob;
    return {-d, kl_coef * d};
  }
};

// The generalised Jensen-Shannon divergence of one token: β·(t − M) + (1 − β)·(s − M). Here t is the token's
// log-probability under the teacher, s under the student, and M under the mixture of both.
//
// With d = t − s, the divergence is β·d − ln(1 − β + β·e^d). Replacing β with 1 − β and d with −d gives the
// same value. The constructor uses this to make β at most ½, so that the formula in token() never subtracts
// nearly equal numbers.
struct Jsd {
  static constexpr const char* name = "jsd";
  struct Options {
    double lambda_coef, kl_coef, temperature;
  };
  static constexpr Field<Options> fields[] = {
      {"lambda_coef", &Options::lambda_coef},
      {"kl_coef", &Options::kl_coef},
      {"temperature", &Options::temperature},
  };
  static constexpr DistillTraits traits{.divergence = "jsd"};

  float beta, rest, kl_coef, slope;
  float in_middle;

  explicit Jsd(const Options& o)
      : beta(static_cast<float>(o.lambda_coef > 0.5 ? 1.0 - o.lambda_coef : o.lambda_coef)),
        rest(static_cast<float>(o.lambda_coef > 0.5 ? o.lambda_coef : 1.0 - o.lambda_coef)),
        kl_coef(static_cast<float>(o.kl_coef)),
        slope(static_cast<float>((o.lambda_coef > 0.5 ? -1.0 : 1.0) / o.temperature)),
        in_middle(o.lambda_coef == 0 || o.lambda_coef == 1 ? 0.0f : 1.0f) {}

  PL_FN DistillTerm token(float old_logprob, float teacher_logprob) const {
    const float d = (teacher_logprob - old_logprob) * slope;
    // For `near`, let z = β·(e^d − 1). In the formula above the logarithm is then ln(1 + z), and β·d is z −
    // β·(e^d − 1 − d).
    const float residual = exp_residual(d);
    const float z = beta * (d + residual);
    const float near = log1p_residual(z) - beta * residual;
    const float far = -rest * d - log_positive(beta + rest * exp(-d));
    const float middle = z < 8.0f ? near : far;
    // At β = 0 and β = 1, Trinity-RFT defines the divergence as −d. The formula above would give another
    // value.
    const float divergence = in_middle != 0.0f ? middle : -d;
    return {divergence, -kl_coef * divergence};
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

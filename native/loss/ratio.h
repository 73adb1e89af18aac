// The ratio of the probabilities that the current and the old policy give a token, which the terms of many
// losses begin with.
#pragma once

#include "loss/loss.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

struct Ratio {
  float log;    // the logarithm of the ratio
  float value;  // the ratio, which a loss may have bounded
};

PL_FN Ratio ratio_of(const Token& t) {
  const float log = t.logprob - t.old_logprob;
  return {log, exp_flushed(log)};
}

// Return the logarithm of a ratio within bounds, and its derivative.
PL_FN float bounded_log(float log) {
  return clip(log, -20.0f, 20.0f);
}
PL_FN float bounded_log_derivative(float log) {
  return clip_derivative(log, -20.0f, 20.0f);
}
// Returns a ratio between e^−20 and e^20. Its logarithm is not bounded.
PL_FN Ratio bounded_ratio_of(const Token& t) {
  const float log = t.logprob - t.old_logprob;
  return {log, exp_bounded(bounded_log(log))};
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

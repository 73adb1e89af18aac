// The log-softmax of one row of logits: its statistics, and its gradient.
//
// A logit x is first capped, z = softcap·tanh(x/softcap), and then divided by the temperature T. Formulas
// take differences of capped logits before they divide, because differences of close numbers are exact in
// float32.
#pragma once

#include <cmath>
#include <cstdint>

#include "math/elementary.h"

namespace policy_loss {

// Sums over the logits of a row, or of some of its logits, where d = (z − max)/T.
struct SoftmaxSums {
  // The largest logit, or −Infinity if all are −Infinity.
  double max = -static_cast<double>(__builtin_inff());
  // The sum of e^d, minus 1. The largest logit's term is 1, so this is the sum over the others, and the
  // log-probability of a token with a probability near 1 keeps its relative precision.
  double rest = -1;
  double weighted = 0;  // the sum of e^d·d
};

// The results of a row.
struct SoftmaxRow {
  double logprob = 0, logsumexp = 0, entropy = 0;
};

// The numbers of a row from which the gradients with respect to its logits are computed.
struct SoftmaxGradient {
  double inverse_temperature, logsumexp, entropy, grad_logprob, grad_entropy;
  // The probability of a token is 2^((z − center)·log2_factor), multiplied by a correction of the rounding of
  // the center, which the following numbers contain.
  float center, log2_factor;
  // The gradient of a token that is not the target is that power of two, multiplied by
  // by_logprob + by_distance·(z − mean).
  float mean, by_logprob, by_distance;
};

inline namespace POLICY_LOSS_TARGET {

// Returns the capped logit.
PL_FN float softcapped(float x, float softcap, float inverse) {
  return softcap * tanh(x * inverse);
}

// Returns the derivative of softcapped(): 1 − tanh², without cancellation.
PL_FN float softcap_derivative(float x, float inverse) {
  const float e = exp_flushed(-2.0f * absolute(x * inverse));
  const float sum = 1.0f + e;
  return 4.0f * e / (sum * sum);
}

// Returns z − max, bounded so that e^d and e^d·d are 0 for −Infinity.
PL_FN float softmax_distance(float z, float max, float least) {
  return bounded_below(z - max, least);
}

// Adds the sums of the next logits of a row. They must be added in the order of the row.
PL_FN void add_sums(const SoftmaxSums& more, double inverse_temperature, SoftmaxSums* sums) {
  const double none = -static_cast<double>(kInfinity);
  if (more.max == none || sums->max == none) {
    // One of the two has no finite logit. Its rest is −1, or NaN if it has a NaN.
    sums->max = more.max == none ? sums->max : more.max;
    sums->rest += more.rest + 1;
    sums->weighted += more.weighted;
    return;
  }
  const bool above = more.max > sums->max;
  const SoftmaxSums high = above ? more : *sums;
  const SoftmaxSums low = above ? *sums : more;
  const double distance = (low.max - high.max) * inverse_temperature;
  const double factor = distance == 0 ? 1 : ::exp(distance);
  const double total = low.rest + 1;
  sums->max = high.max;
  sums->rest = high.rest + factor * total;
  sums->weighted = high.weighted + (factor > 0 ? factor * (low.weighted + distance * total) : 0);
}

// Returns the results of a row from the sums over all its logits. `target` is the target's capped logit.
PL_FN SoftmaxRow softmax_row(const SoftmaxSums& sums, double inverse_temperature, double target) {
  const double log_total = ::log1p(sums.rest);
  return {(target - sums.max) * inverse_temperature - log_total, sums.max * inverse_temperature + log_total,
          log_total - sums.weighted / (sums.rest + 1)};
}

constexpr double kLog2E = 1.4426950408889634;

// Returns the least x for which exp2_of_product(x, factor, …) is defined.
PL_FN float least_distance(float log2_factor) {
  return kLeastExponent / log2_factor;
}

// Prepares the gradient of a row. `g` and `g_entropy` are the gradients with respect to the log-probability
// and the entropy.
PL_FN SoftmaxGradient softmax_gradient(double temperature, double logsumexp, double entropy, double g,
                                       double g_entropy) {
  const double inverse = 1 / temperature;
  const float center = static_cast<float>(logsumexp * temperature);
  const float mean = static_cast<float>((logsumexp - entropy) * temperature);
  // log p + entropy = (z − mean)/T + mean_offset
  const double mean_offset = mean * inverse - (logsumexp - entropy);
  const double scale = -::exp(center * inverse - logsumexp) * inverse;
  return {inverse,
          logsumexp,
          entropy,
          g,
          g_entropy,
          center,
          static_cast<float>(kLog2E * inverse),
          mean,
          static_cast<float>(scale * (g + g_entropy * mean_offset)),
          static_cast<float>(scale * g_entropy * inverse)};
}

// Prepares the gradient of a row with a list. The other tokens have the gradient `g_others` with respect to
// the sum of their probabilities, which is part of g.
PL_FN SoftmaxGradient softmax_gradient_of_list(double temperature, double logsumexp, double entropy, double g,
                                               double g_entropy, double g_others) {
  SoftmaxGradient row = softmax_gradient(temperature, logsumexp, entropy, g - g_others, g_entropy);
  row.grad_logprob = g;
  return row;
}

// Returns the factor of a token's term in its gradient. z must not be −Infinity. `row` is the result of
// relative_to() if the term is not the token's probability.
template <bool with_entropy>
PL_FN float by_term(const SoftmaxGradient& row, float z) {
  return with_entropy ? fma(row.by_distance, z - row.mean, row.by_logprob) : row.by_logprob;
}

// Returns the gradient of a token from its term. The term of −Infinity is 0, so any finite factor will do.
template <bool with_entropy>
PL_FN float gradient_of_term(const SoftmaxGradient& row, float term, float z) {
  return term * by_term<with_entropy>(row, bounded_below(z, -1e30f));
}

// Returns the numbers of a row for its terms in the sums, e^((z − reference)/T), instead of probabilities.
PL_FN SoftmaxGradient relative_to(double reference, SoftmaxGradient row) {
  const double scale = ::exp((reference - static_cast<double>(row.center)) * row.inverse_temperature);
  row.by_logprob = static_cast<float>(scale * static_cast<double>(row.by_logprob));
  row.by_distance = static_cast<float>(scale * static_cast<double>(row.by_distance));
  return row;
}

// Returns the gradient with respect to the capped logit of a token that is not the target.
template <bool with_entropy>
PL_FN float gradient_of(const SoftmaxGradient& row, float least, float z) {
  const float distance = softmax_distance(z, row.center, least);
  if constexpr (!with_entropy) return exp2_of_product(distance, row.log2_factor, row.by_logprob);
  return gradient_of_term<true>(row, exp2_of_product(distance, row.log2_factor, 1.0f), z);
}

// Returns the gradient with respect to the capped logit of a token, where `g` is the gradient with respect to
// its log-probability, which is part of row.grad_logprob. It is computed in float64, because 1 − p would
// cancel for a probability near 1.
PL_FN float gradient_of_token(const SoftmaxGradient& row, double log_p, double g) {
  const double p = ::exp(log_p);
  const double surplus = p > 0 ? p * (log_p + row.entropy) : p;
  const double by_y = -g * ::expm1(log_p) - p * (row.grad_logprob - g) - row.grad_entropy * surplus;
  return static_cast<float>(by_y * row.inverse_temperature);
}

// Returns the gradient with respect to the target's capped logit.
PL_FN float gradient_of_target(const SoftmaxGradient& row, float z) {
  return gradient_of_token(row, z * row.inverse_temperature - row.logsumexp, row.grad_logprob);
}

}  // namespace POLICY_LOSS_TARGET
}  // namespace policy_loss

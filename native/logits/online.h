// The sums over a row of logits in one pass, for engines whose threads read logits that lie far apart.
#pragma once

#include "logits/softmax.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Sums over the logits that a thread has read, where d = z − max. They are divided by no temperature.
struct OnlineSums {
  float max = -kInfinity;
  // The sum of e^(d/T) without one logit that equals max. Leaving that term, 1, out keeps the sum precise
  // when the logit has nearly all of the probability. It is −1 if all logits are −Infinity.
  float rest = -1.0f;
  float weighted = 0.0f;  // the sum of e^(d/T)·d
};

// Takes the sums relative to a larger logit, which they do not contain. The rest is then the sum over all
// logits that were read.
PL_FN void raise_max(float max, float log2_factor, OnlineSums* sums) {
  const float distance = softmax_distance(sums->max, max, least_distance(log2_factor));
  const float factor = exp2_of_product(distance, log2_factor, 1.0f);
  const float total = sums->rest + 1.0f;
  sums->max = max;
  sums->rest = factor * total + (max - max);  // NaN if max is Infinity
  sums->weighted = factor * (sums->weighted + distance * total);
}

// Adds n logits. Changes z.
template <int n>
PL_FN void add_logits(float (&z)[n], float log2_factor, OnlineSums* sums) {
  float largest = -kInfinity;
#pragma unroll
  for (int j = 0; j < n; ++j) largest = z[j] > largest ? z[j] : largest;
  if (largest > sums->max) {
    raise_max(largest, log2_factor, sums);
    bool found = false;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const bool is_max = !found && z[j] == largest;
      found = found || is_max;
      z[j] = is_max ? -kInfinity : z[j];
    }
  }
  // Without a logit above −Infinity, the terms are 0, or NaN if there is a NaN.
  const float center = sums->max > -kInfinity ? sums->max : 0.0f;
  const float least = least_distance(log2_factor);
  float total = 0.0f, weighted = 0.0f;
#pragma unroll
  for (int j = 0; j < n; ++j) {
    const float distance = softmax_distance(z[j], center, least);
    const float e = exp2_of_product(distance, log2_factor, 1.0f);
    total += e;
    weighted = fma(e, distance, weighted);
  }
  sums->rest += total;
  sums->weighted += weighted;
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

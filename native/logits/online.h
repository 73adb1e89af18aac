// The sums over a row of logits in one pass, for engines whose threads read logits that lie far apart.
#pragma once

#include "logits/softmax.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// How much larger than the reference a logit may be, as the exponent of a power of two.
constexpr float kMostAbove = 8.0f;

// Sums over the logits that a thread has read, except for one that equals the largest. Leaving that one out
// keeps the sum precise when it has nearly all of the probability. The sums are relative to one of the
// logits, the reference: d = z − reference is divided by no temperature.
struct OnlineSums {
  float max = -kInfinity;
  float reference = -3.40282347e38f;  // the least finite number while all logits are −Infinity
  float most = -kInfinity;            // the largest logit for which the reference may be kept
  float rest = 0.0f;                  // the sum of e^(d/T)
  float weighted = 0.0f;              // the sum of e^(d/T)·d
};

// Takes the sums relative to a larger reference.
PL_FN void raise_reference(float reference, float log2_factor, OnlineSums* sums) {
  const float least = least_distance(log2_factor);
  const float distance = softmax_distance(sums->reference, reference, least);
  const float factor = exp2_of_product(distance, log2_factor, 1.0f);
  sums->reference = reference;
  sums->most = reference + kMostAbove / kLeastExponent * least;
  sums->rest *= factor;
  sums->weighted = fma(sums->rest, distance, factor * sums->weighted);
}

// Adds n logits.
template <int n>
PL_FN void add_logits(const float (&z)[n], float log2_factor, OnlineSums* sums) {
  // All of the logits read so far but the largest one.
  float others[n];
#pragma unroll
  for (int j = 0; j < n; ++j) {
    others[j] = bounded_above(z[j], sums->max);
    sums->max = fmaxf(sums->max, z[j]);
  }
  if (sums->max > sums->most) raise_reference(sums->max, log2_factor, sums);
  const float least = least_distance(log2_factor);
  float rest = 0.0f, weighted = 0.0f;
#pragma unroll
  for (int j = 0; j < n; ++j) {
    const float distance = softmax_distance(others[j], sums->reference, least);
    const float e = exp2_of_product(distance, log2_factor, 1.0f);
    rest += e;
    weighted = fma(e, distance, weighted);
  }
  sums->rest += rest;
  sums->weighted += weighted;
}

// Takes the sums relative to the largest logit of several threads, and adds this thread's largest logit,
// unless it is that one.
PL_FN void relate_to(float max, float log2_factor, OnlineSums* sums) {
  raise_reference(max, log2_factor, sums);
  sums->rest += max - max;  // NaN if max is Infinity
  if (sums->max == max) return;
  const float distance = softmax_distance(sums->max, max, least_distance(log2_factor));
  const float e = exp2_of_product(distance, log2_factor, 1.0f);
  sums->rest += e;
  sums->weighted = fma(e, distance, sums->weighted);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

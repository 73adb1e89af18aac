// The gradient of a tile of logits, from the logits or from the terms of their sums.
#pragma once

#include "cpu/logits_pairs.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// If is_small is set, the logits are small and `shared` is relative to a logit of 0.
template <bool with_entropy, bool is_small>
PL_SHARED void gradient_tile(const SoftmaxGradient& shared, const float* z, int n, float* out,
                             const Ahead& ahead) {
  const SoftmaxGradient gradient = shared;
  const float least = least_distance(gradient.log2_factor);
  for (int at = 0; at < n; at += kVector) {
    ahead.read<false>(at);
    PL_FOR_LANES_COMPACTLY
    for (int l = at; l < at + kVector; ++l) {
      out[l] = is_small ? gradient_of_small<with_entropy>(gradient, z[l])
                        : gradient_of<with_entropy>(gradient, least, z[l]);
    }
  }
}

// Does the same with the terms of the sums. `shared` is relative to the tile's reference.
template <bool with_entropy>
PL_SHARED void gradient_of_terms(const SoftmaxGradient& shared, const float* terms, const float* z, int n,
                                 float* out, const Ahead& shared_ahead) {
  const SoftmaxGradient gradient = shared;
  const Ahead ahead = shared_ahead;
  for (int at = 0; at < n; at += kWide) {
    ahead.read_far(at);
    PL_FOR_EACH(kWide)
    for (int l = 0; l < kWide; ++l)
      out[at + l] = gradient_of_term<with_entropy>(gradient, terms[at + l], z[at + l]);
  }
}

// Writes the gradient of logits. `terms` is null if none were saved; otherwise `shared` is relative to their
// reference. If is_small is set, `shared` is relative to a logit of 0.
inline void write_gradient(const SoftmaxGradient& shared, const float* terms, bool is_small, const float* z,
                           int n, bool with_entropy, const Ahead& ahead, float* out) {
  if (terms)
    (with_entropy ? gradient_of_terms<true> : gradient_of_terms<false>)(shared, terms, z, n, out, ahead);
  else if (is_small)
    (with_entropy ? gradient_tile<true, true> : gradient_tile<false, true>)(shared, z, n, out, ahead);
  else
    (with_entropy ? gradient_tile<true, false> : gradient_tile<false, false>)(shared, z, n, out, ahead);
}

inline PL_SHARED void multiply_by_softcap_derivative(const float* x, int n, float softcap, float* grad) {
  const float inverse = 1.0f / softcap;
  for (int at = 0; at < n; at += kVector) {
    PL_FOR_LANES_COMPACTLY
    for (int l = 0; l < kVector; ++l) grad[at + l] *= softcap_derivative(x[at + l], inverse);
  }
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

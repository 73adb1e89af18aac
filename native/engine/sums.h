// The numbers that a call passes between its device and the host: coefficients in, counts and sums out. Plain
// structs without the C++ library's types, as CUDA's host compiler may have another library than ours.
#pragma once

#include <cstdint>

#include "engine/batch.h"
#include "engine/weights.h"

namespace policy_loss {

// What may change from one call to the next.
struct Coefficients {
  double mu = 0;       // the share of the experts' rows in mix
  double kl = 0;       // of the KL loss
  double entropy = 0;  // of the entropy loss; negative where entropy is a bonus, as in an objective
};

// Weighted sums of losses, before mu and coefficients, and plain sums of metric terms.
struct Sums {
  double loss[2] = {};
  double metric[kMaxTokenMetrics] = {};
  double row_metric[kMaxRowMetrics] = {};
  double kl = 0;
  double entropy = 0;

  void add(const Sums& other);
};

// Counts of unmasked tokens and of rows, by kind of row.
struct BatchCounts {
  double tokens[2] = {};
  double rows[2] = {};
  double columns = 0;

  PL_FN Counts of_kind(int kind) const { return {tokens[kind], rows[kind], columns}; }
  PL_FN Counts all() const { return {tokens[0] + tokens[1], rows[0] + rows[1], columns}; }
};

// BatchCounts as plain numbers, in the order of its members.
constexpr int kCounts = 5;
PL_FN void write_counts(const BatchCounts& counts, double* out) {
  for (int kind = 0; kind < 2; ++kind) {
    out[kind] = counts.tokens[kind];
    out[2 + kind] = counts.rows[kind];
  }
  out[4] = counts.columns;
}
PL_FN BatchCounts read_counts(const double* numbers) {
  return {{numbers[0], numbers[1]}, {numbers[2], numbers[3]}, numbers[4]};
}

// The counts of a whole batch of which the one at hand is a part, so that the parts' results add up to the
// whole's.
struct Normalizer {
  bool given = false;
  BatchCounts counts;
};

// The weights of the policy loss's two kinds of rows: an unmasked token's contribution to Sums.loss is
// row_weight(aggregation[kind], counts[kind], n_b)·ℓ, and that times scale[kind] goes into loss and gradient.
struct KindScales {
  double metric[2] = {1, 1};
  double loss[2] = {1, 1};
};
inline namespace POLICY_LOSS_TARGET {

// kind_scales() of a loss whose type is known.
template <class L>
PL_FN KindScales kind_scales_of(const L& loss, const BatchCounts& counts, double mu) {
  KindScales scales;
  if constexpr (requires { typename L::Expert; }) {
    const double rows = counts.rows[0] + counts.rows[1];
    for (int kind = 0; kind < 2; ++kind) {
      scales.metric[kind] = loss.kind_scale(kind, counts.rows[kind], rows);
      scales.loss[kind] = scales.metric[kind] * (kind == 0 ? 1.0 - mu : mu);
    }
  }
  return scales;
}

}  // namespace POLICY_LOSS_TARGET
}  // namespace policy_loss

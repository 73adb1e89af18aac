// Computes the weights of one row in all terms of a call. The CPU engine and the CUDA engine share this code.
#pragma once

#include "engine/sums.h"
#include "engine/terms.h"

namespace policy_loss {

// The factors that apply to each unmasked token of a row. A weight multiplies the token's value in the
// reported sums. A gradient weight (`…_grad`) multiplies the token's derivative in the gradient.
struct RowWeights {
  double loss = 0, loss_grad = 0;
  double kl = 0, kl_grad = 0;
  double entropy = 0, entropy_grad = 0;
};

// The properties of a row on which its weights depend.
struct WeightedRow {
  int kind;
  double repeats;  // how often it counts
  double tokens;   // its unmasked tokens
};

inline namespace POLICY_LOSS_TARGET {

// Sets the weights of the policy loss. Not used for a loss over pairs of rows, which gets its weights from
// pair_loss(). two_kinds tells whether the loss treats usual rows differently from rows that an expert wrote.
PL_FN void weigh_loss(const Terms& terms, bool two_kinds, const BatchCounts& counts, const KindScales& scales,
                      const WeightedRow& row, RowWeights* weights) {
  const Counts relevant = two_kinds ? counts.of_kind(row.kind) : counts.all();
  weights->loss = row.repeats * row_weight(terms.loss_aggregation[row.kind], relevant, row.tokens);
  weights->loss_grad = weights->loss * scales.loss[row.kind];
}

// Sets the weights of the KL loss and of the entropy loss, if the call has these terms.
PL_FN void weigh_kl_and_entropy(const Terms& terms, const BatchCounts& counts,
                                const Coefficients& coefficients, const WeightedRow& row,
                                RowWeights* weights) {
  if (terms.has_kl()) {
    weights->kl = row.repeats * row_weight(terms.kl_aggregation, counts.all(), row.tokens);
    weights->kl_grad = weights->kl * coefficients.kl;
  }
  if (terms.has_entropy(row.kind)) {
    const Counts relevant = terms.entropy_of_usual_rows_only ? counts.of_kind(0) : counts.all();
    weights->entropy = row.repeats * row_weight(terms.entropy_aggregation, relevant, row.tokens);
    weights->entropy_grad = weights->entropy * coefficients.entropy;
  }
}

}  // namespace POLICY_LOSS_TARGET
}  // namespace policy_loss

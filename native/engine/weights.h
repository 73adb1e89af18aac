// Computes the weight of a row from the counts of the batch. No other code depends on the aggregation mode.
#pragma once

#include "math/target.h"

namespace policy_loss {

enum class Aggregation : int {
  kTokenMean,
  kSeqMeanTokenSum,
  kSeqMeanTokenMean,
  kSeqMeanTokenSumNorm,
  kTokenSum
};
constexpr const char* kAggregationNames[] = {"token-mean", "seq-mean-token-sum", "seq-mean-token-mean",
                                             "seq-mean-token-sum-norm", "token-sum"};

// The counts on which a weight depends. They cover either all rows or the rows of one kind.
struct Counts {
  double tokens = 0;      // N, the unmasked tokens
  double rows = 0;        // B
  double row_length = 0;  // T
};

inline namespace POLICY_LOSS_TARGET {

// Returns the weight of each unmasked token in a row. row_tokens is the number of unmasked tokens in the row.
PL_FN double row_weight(Aggregation aggregation, const Counts& counts, double row_tokens) {
  switch (aggregation) {
    case Aggregation::kTokenMean:
      return 1.0 / (counts.tokens + 1e-8);
    case Aggregation::kSeqMeanTokenSum:
      return 1.0 / counts.rows;
    case Aggregation::kSeqMeanTokenMean:
      return 1.0 / (counts.rows * (row_tokens + 1e-8));
    case Aggregation::kSeqMeanTokenSumNorm:
      return 1.0 / (counts.row_length + 1e-8);
    case Aggregation::kTokenSum:
      return 1.0;
  }
  return 0.0;
}

}  // namespace POLICY_LOSS_TARGET
}  // namespace policy_loss

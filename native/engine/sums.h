// The numbers that a call passes between host and device. The host sends coefficients, and the device returns
// counts and sums.
//
// These are plain structs without types of the C++ standard library, because nvcc's host compiler may use a
// different standard library than the addon.
#pragma once

#include <cstdint>

#include "engine/batch.h"
#include "engine/weights.h"
#include "loss/loss.h"

namespace policy_loss {

// A sum over tokens consists of this many partial sums. Each token belongs to the partial sum of its position
// in the row modulo kSumLanes. The order of the additions therefore depends on the positions alone, and not
// on the loop that computes the sum. An iteration of a vectorised loop must not compute more tokens than
// this.
constexpr int kSumLanes = 32;

// The number of tokens after which a float32 sum is added to a float64 sum. It counts from the row's start.
constexpr int kSumTokens = 1024;

// The number of tokens in a chunk. It is small enough that a chunk's columns and gradients fit into a core's
// L2 cache. So memory is read only once, although a chunk's row sums are computed before its tokens. It is
// large enough that starting a chunk on a thread costs little in comparison. Float64 sums over a row's tokens
// also end after this many tokens, so they do not depend on whether the row is divided into chunks.
constexpr int64_t kChunkTokens = 16384;

// The factors that the caller may change from one call to the next.
struct Coefficients {
  double mu = 0;       // the weight of the expert's rows in mix
  double kl = 0;       // the factor of the KL loss
  double entropy = 0;  // the factor of the entropy loss; negative if entropy is a bonus
};

// The sums over the batch. The losses are already multiplied by the rows' weights, but not yet by mu and the
// coefficients. The metrics are only multiplied by the rows' repeats. All members are double, because
// ExactSums reads them as an array.
struct Sums {
  double loss[2] = {};  // by kind of row
  double metric[kMaxMetrics] = {};
  double row_metric[kMaxRowMetrics] = {};
  double kl = 0;
  double entropy = 0;
};

// The numbers of unmasked tokens and of rows in a batch, by kind of row. Index 0 is for usual rows, which the
// policy sampled, and index 1 for rows that an expert wrote.
struct BatchCounts {
  double tokens[2] = {};
  double rows[2] = {};
  double row_length = 0;

  PL_FN Counts of_kind(int kind) const { return {tokens[kind], rows[kind], row_length}; }
  PL_FN Counts all() const { return {tokens[0] + tokens[1], rows[0] + rows[1], row_length}; }
};

// Convert BatchCounts to an array of kCounts numbers, in the order of its members, and back.
constexpr int kCounts = 5;
PL_FN void write_counts(const BatchCounts& counts, double* out) {
  for (int kind = 0; kind < 2; ++kind) {
    out[kind] = counts.tokens[kind];
    out[2 + kind] = counts.rows[kind];
  }
  out[4] = counts.row_length;
}
PL_FN BatchCounts read_counts(const double* numbers) {
  return {{numbers[0], numbers[1]}, {numbers[2], numbers[3]}, numbers[4]};
}

// The counts of a whole batch. They are given if a call computes only a part of the batch. The results of all
// parts then add up to the result of the whole batch.
struct Normalizer {
  bool given = false;
  BatchCounts counts;
};

// The factors by which the losses in Sums are multiplied, for each kind of row. `metric` is used for the
// reported metrics, `loss` for the loss and its gradient.
struct KindScales {
  double metric[2] = {1, 1};
  double loss[2] = {1, 1};
};

inline namespace POLICY_LOSS_TARGET {

template <class L>
PL_FN KindScales kind_scales_of(const L& loss, const BatchCounts& counts, double mu) {
  KindScales scales;
  if constexpr (L::traits.two_kinds) {
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

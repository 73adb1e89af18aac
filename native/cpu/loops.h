// The inner loops, each of which computes one tile (see tile.h). They are in tables of functions, with one
// entry per policy loss and one per KL estimator.
//
// Each loop calls a function's token() for every token of a tile, and the compiler vectorises the loop.
// Losses and metrics are summed in float32 over kSumTokens tokens, and these sums are added in float64. Row
// sums are in float64 throughout, because an error in a row sum affects all tokens of the row.
#pragma once

#include "cpu/tile.h"
#include "engine/registry.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// What a loss is told about a row: the sum of the loss's row_term() over the row, the number of unmasked
// tokens, and the kind of the row (0: usual, 1: written by an expert).
struct RowStatistics {
  double sum, count;
  int kind;
};

// The float32 sums of a loss and its metrics.
struct LossSums {
  LaneSum<float> loss;
  LaneSum<float> metric[kMaxMetrics];
};

// The loops of one policy loss. The argument `loss` points to an object of this loss's type. The tile length
// n is a multiple of kGranule. If `grad` is null, the gradient is not computed.
struct LossLoops {
  // Adds row_term() of a tile's unmasked tokens to `sum`.
  void (*row_sum_tile)(const void* loss, const TileColumns& in, int n, LaneSum<double>* sum);
  // Writes a row's metrics to `out`. `negatives` is the number of the row's tokens that have a negative
  // advantage.
  void (*row_metric)(const void* loss, const RowStatistics& row, double negatives, double* out);
  void (*loss_tile)(const void* loss, const RowStatistics& row, const TileColumns& in, int n, float weight,
                    float* grad, LossSums* sums);
  bool (*needs_row_sums)(const void* loss);
  unsigned row_sum_columns;  // the columns that row_sum_tile() reads
  LossTraits traits;
};
const LossLoops& loss_loops(int index);

// The loops of one KL estimator.
struct KlLoops {
  // Adds the KL values of a tile's unmasked tokens to `sum`. Writes their gradient to `grad`, or adds it to
  // the numbers in `grad` if `add` is set.
  void (*tile)(const TileColumns& in, int n, float weight, float* grad, bool add, LaneSum<float>* sum);
  void (*values)(const TileColumns& in, int n, float* out);
  unsigned columns;
};
const KlLoops& kl_loops(int index);

// Adds the entropies of a tile's unmasked tokens to `sum`. If `grad` is not null, also writes their gradient,
// which is `weight` for each of these tokens.
void entropy_tile(const TileColumns& in, int n, float weight, float* grad, LaneSum<float>* sum);

// The number of files loss_loops_<file>.cc. The losses are divided among these files, so that they compile
// in parallel.
constexpr int kLossFiles = 2;
template <int file>
const LossLoops* loss_loops_of_file(int index);

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// The inner loops over one tile, as tables of functions: one entry per policy loss and per KL estimator.
//
// Each loop calls a function's token() for every token of a tile, and the compiler vectorises it. Losses and
// metrics are summed in float32 over kSumTokens tokens, and in float64 beyond. Row sums use float64 throughout,
// because an error in a row sum affects all tokens of the row.
#pragma once

#include "cpu/tile.h"
#include "engine/registry.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The row statistics that a loss receives: the sum of row_term(), the count of unmasked tokens, and the kind
// of row (0: usual, 1: an expert's).
struct RowStatistics {
  double sum, count;
  int kind;
};

// The float32 sums of a loss and its metrics.
struct LossSums {
  LaneSum<float> loss;
  LaneSum<float> metric[kMaxTokenMetrics];
};

// The loops of one policy loss. `loss` points to a loss object of the type at this index in Losses. Tile
// lengths n are multiples of kBlock. A null `grad` means that no gradient is wanted.
struct LossLoops {
  // Adds row_term() of a tile's unmasked tokens to `sum`.
  void (*row_sum_tile)(const void* loss, const TileColumns& in, int n, LaneSum<double>* sum);
  // Writes a row's metrics to `out`.
  void (*row_metric)(const void* loss, const RowStatistics& row, double negatives, double* out);
  void (*loss_tile)(const void* loss, const RowStatistics& row, const TileColumns& in, int n, float weight,
                    float* grad, LossSums* sums);
  bool (*needs_row_sums)(const void* loss);
  LossTraits traits;
};
const LossLoops& loss_loops(int index);

// The loops of one KL estimator.
struct KlLoops {
  // Adds the unmasked tokens' values to `sum`. Writes the gradient, or adds it to `grad` if `add` is set.
  void (*tile)(const TileColumns& in, int n, float weight, float* grad, bool add, LaneSum<float>* sum);
  void (*values)(const TileColumns& in, int n, float* out);
  unsigned columns;
};
const KlLoops& kl_loops(int index);

// Adds the unmasked tokens' entropies to `sum`, and writes the gradient unless `grad` is null.
void entropy_tile(const TileColumns& in, int n, float weight, float* grad, LaneSum<float>* sum);

// The number of files, loss_loops_<slice>.cc, over which the losses are spread so that they compile in
// parallel.
constexpr int kLossSlices = 2;
template <int slice>
const LossLoops* loss_loops_of_slice(int index);

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

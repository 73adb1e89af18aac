// The inner loops over one tile, as tables of functions: one entry per policy loss and per KL estimator.
//
// Each loop is one flat pass over a function's token() that the compiler vectorises. Losses and metrics are
// summed in float32 within a tile and in float64 above it. Row sums use float64 throughout, because an error
// in one moves a whole row.
#pragma once

#include "cpu/tile.h"
#include "engine/registry.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// What a loss gets to know of a row.
struct RowStatistics {
  double sum, count;
  int kind;
};

struct TileSums {
  double loss = 0;
  double metric[kMaxTokenMetrics] = {};
};

// The loops of one policy loss. A loss object comes as a pointer to the type in Losses. Tile lengths are
// multiples of kBlock. No gradient is written if the pointer to it is null.
struct LossLoops {
  // Sums row_term() over a tile. Reads the mask's bytes.
  double (*row_sum_tile)(const void* loss, const TileColumns& in, int n);
  // Adds a row's metrics, times its repeats, to `out`.
  void (*row_metric)(const void* loss, const RowStatistics& row, double negatives, double repeats,
                     double* out);
  void (*loss_tile)(const void* loss, const RowStatistics& row, const TileColumns& in, int n, float weight,
                    float* grad, TileSums* sums);
  bool (*needs_row_sums)(const void* loss);
  LossTraits traits;
};
const LossLoops& loss_loops(int index);

// The loops of one KL estimator.
struct KlLoops {
  // Returns the sum of the unmasked tokens' values. Writes the gradient, or adds it if `add` is set.
  double (*tile)(const TileColumns& in, int n, float weight, float* grad, bool add);
  void (*values)(const TileColumns& in, int n, float* out);
  unsigned columns;
};
const KlLoops& kl_loops(int index);

// Returns the sum of the unmasked tokens' entropies.
double entropy_tile(const TileColumns& in, int n, float weight, float* grad);

// The losses are compiled in so many files, side by side.
constexpr int kLossSlices = 2;
template <int slice>
const LossLoops* loss_loops_of_slice(int index);

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// One build of the CPU engine's inner loops, for one instruction set, and the choice among them.
#pragma once

#include <cstdint>

#include "engine/advantages.h"
#include "engine/function.h"

namespace policy_loss::cpu {

// The unit of work: some whole rows, or a part of one long row. Fixed by the batch's layout alone, so that
// sums are the same whoever computes them.
struct Chunk {
  int64_t first_row, last_row;      // last_row is one past the end
  int64_t first_token, last_token;  // of a part of a row: within the row; else 0 and -1

  bool is_part() const { return last_token >= 0; }
};

// Everything that the token pass needs, beside the chunk.
struct TokenPass {
  const Terms* terms;
  const BatchView* batch;
  const void* loss;  // the loss object of a PreparedFunction
  BatchCounts counts;
  KindScales scales;
  Coefficients coefficients;
  const int64_t* row_tokens;    // n_b
  const double* row_sums;       // facts that were summed beforehand: of rows in parts; of pairs the weights
  const double* row_negatives;  // likewise
  float* grad;                  // null: not asked for
  float* grad_entropy;
};

// What the row pass finds in a chunk.
struct RowPart {
  int64_t tokens = 0;
  double sum = 0;
  double negatives = 0;
};

// Per token, out = base − scale·m·kl with a base, or kl itself without.
struct KlPass {
  int estimator;
  const BatchView* batch;
  const float* base;
  double scale;
  float* out;
  double* row_means;  // mean of m·kl in each row; null: not asked for
};

// Everything that the passes of an advantage function need, beside the chunk.
struct AdvantagePass {
  const AdvantageBatch* batch;
  int index;  // in the list of its shape
  const double* options;
  AdvantageOutputs outputs;
  // Of a row: the sum of its token rewards (kTokenRewards), or the mean of its unmasked log-probabilities.
  AdvantageColumn statistic_of;
  double* row_statistics;
  const float* scores;  // per row, of group functions
  double* row_sums;     // two a row, of distillation: divergence and advantage
  // Whitens a recurrence's advantages: (a − shift)·scale.
  double shift, scale;
};

struct Target {
  const char* name;
  // The row pass over tokens [first, last) of a row; the loss's sum only where asked for.
  RowPart (*row_pass)(const BatchView& batch, int loss_index, const void* loss, bool sum, int64_t row,
                      int64_t first, int64_t last);
  void (*token_pass)(const TokenPass& pass, const Chunk& chunk, Sums* sums);
  // Reads the columns and writes the gradients of a token pass and computes nothing: what memory alone takes,
  // for measurements. Gives bits that depend on all that was read.
  uint32_t (*traffic_pass)(const TokenPass& pass, const Chunk& chunk);
  // part gets the sum and count of a chunk that is a part of a row.
  void (*kl_pass)(const KlPass& pass, const Chunk& chunk, RowPart* part);
  // The passes of advantage functions; see cpu/advantages.inc. Chunks of find_row_statistics, measure and
  // recur are whole rows; distill leaves the two sums of a part of a row in `part`.
  void (*find_row_statistics)(const AdvantagePass& pass, const Chunk& chunk, NonFiniteValue* bad);
  void (*broadcast)(const AdvantagePass& pass, const Chunk& chunk);
  void (*measure)(const AdvantagePass& pass, const Chunk& chunk, Spread* spread, NonFiniteValue* bad);
  void (*recur)(const AdvantagePass& pass, const Chunk& chunk, NonFiniteValue* bad);
  void (*distill)(const AdvantagePass& pass, const Chunk& chunk, double* part);
};

// The build for the best instruction set that machine and operating system have, or the one that the
// environment variable POLICY_LOSS_ISA names. Null when that names one that cannot run here.
const Target* choose_target();

}  // namespace policy_loss::cpu

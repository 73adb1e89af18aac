// The passes of the CPU engine on one chunk of a batch, as a table of functions. There is one table for each
// instruction set. choose_target() selects the one that runs here.
#pragma once

#include <cstdint>

#include "engine/advantages.h"
#include "engine/function.h"

namespace policy_loss::cpu {

// The unit of work: several whole rows, or a part of one long row. The batch's layout alone determines the
// chunks, so that sums do not depend on the threads that compute them.
struct Chunk {
  int64_t first_row, last_row;      // last_row is one past the end
  int64_t first_token, last_token;  // the part of the row, or 0 and -1 for whole rows

  PL_FN bool is_part() const { return last_token >= 0; }
  PL_FN int64_t first_token_of_row() const { return last_token >= 0 ? first_token : 0; }
  PL_FN int64_t last_token_of_row(const Layout& layout, int64_t row) const {
    return last_token >= 0 ? last_token : layout.length(row);
  }
};

// The inputs and outputs of the token pass.
struct TokenPass {
  const Terms* terms;
  const BatchView* batch;
  const void* loss;  // the loss object of a PreparedFunction
  BatchCounts counts;
  KindScales scales;
  Coefficients coefficients;
  const int64_t* row_tokens;  // n_b
  // Row sums that the row pass found: of rows in several chunks, and of losses over pairs. A loss over pairs
  // has the rows' gradient weights here instead.
  const double* row_sums;
  const double* row_negatives;  // of rows in several chunks
  float* grad;                  // null: not wanted
  float* grad_entropy;          // null: not wanted
};

// The result of the row pass for a row, or for a part of one.
struct RowPart {
  int64_t tokens = 0;
  double sum = 0;
  double negatives = 0;
};

// The inputs and outputs of the KL pass. It computes out = base − scale·m·kl per token, or out = kl if there
// is no base.
struct KlPass {
  int estimator;
  const BatchView* batch;
  const float* base;
  double scale;
  float* out;
  double* row_means;  // the mean of m·kl in each row; null: not wanted
};

// The inputs and outputs of an advantage function's passes.
struct AdvantagePass {
  const AdvantageBatch* batch;
  int index;  // in the list of its shape
  const double* options;
  AdvantageOutputs outputs;
  // The column that the row statistics are made from: the sum of kTokenRewards, or the mean of the unmasked
  // values of kSampledLogprob.
  AdvantageColumn statistic_of;
  double* row_statistics;
  const float* scores;  // per row; group functions only
  double* row_sums;     // divergence and advantage of each row; distillation only
  // Whitens the advantages of a recurrence: (a − shift)·scale.
  double shift, scale;
};

struct Target {
  const char* name;
  // Counts the unmasked tokens in [first, last) of a row. Computes the loss's row sums only if `sum` is set.
  RowPart (*row_pass)(const BatchView& batch, int loss_index, const void* loss, bool sum, int64_t row,
                      int64_t first, int64_t last);
  void (*token_pass)(const TokenPass& pass, const Chunk& chunk, Sums* sums);
  // Writes the sum and the count of a chunk that is a part of a row to `part`.
  void (*kl_pass)(const KlPass& pass, const Chunk& chunk, RowPart* part);
  // The passes of advantage functions. The first, the third and the fourth need chunks of whole rows.
  // `distill` writes the two sums of a part of a row to `part`.
  void (*find_row_statistics)(const AdvantagePass& pass, const Chunk& chunk, NonFiniteValue* bad);
  void (*broadcast)(const AdvantagePass& pass, const Chunk& chunk);
  void (*measure)(const AdvantagePass& pass, const Chunk& chunk, Spread* spread, NonFiniteValue* bad);
  void (*recur)(const AdvantagePass& pass, const Chunk& chunk, NonFiniteValue* bad);
  void (*distill)(const AdvantagePass& pass, const Chunk& chunk, double* part);
};

// Returns the table for the best instruction set that processor and operating system support, or for the one
// that the environment variable POLICY_LOSS_ISA names. Returns null if that one cannot run here.
const Target* choose_target();

}  // namespace policy_loss::cpu

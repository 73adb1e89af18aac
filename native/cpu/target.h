// The passes of the CPU engine, as a table of functions that each compute one chunk of a batch. Each
// instruction set has a table. choose_target() selects one that this machine can run.
#pragma once

#include <cstdint>

#include "engine/advantages.h"
#include "engine/exact_sums.h"
#include "engine/function.h"

namespace policy_loss::cpu {

// The number of tokens of a chunk. Few enough that its columns and gradients fit a core's L2 cache, so that
// computing row sums and then tokens reads memory only once. Many enough that starting a chunk on a thread costs
// little in comparison. A row's float64 sums cover the same number of tokens, so that they do not depend on
// whether the row is divided among chunks.
constexpr int64_t kChunkTokens = 16384;

// What one thread computes at a time: several whole rows, or a part of one long row. Only the batch's layout
// determines the chunks, so that sums do not depend on the number of threads.
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
  const int64_t* row_tokens;  // unmasked tokens per row
  // The row sums of rows that several chunks share. For a loss over pairs: the rows' gradient weights.
  const double* row_sums;
  const double* row_negatives;  // tokens with a negative advantage, of rows that several chunks share
  float* grad;                  // null: not wanted
  float* grad_entropy;          // null: not wanted
};

// The result of the row pass for a row, or for a part of one.
struct RowPart {
  int64_t tokens = 0;
  double sum = 0;
  double negatives = 0;
};

// The inputs and outputs of the KL pass. It computes out = base − scale·m·kl per token, where m is the mask.
// Without a base it computes out = kl.
struct KlPass {
  int estimator;
  const BatchView* batch;
  const float* base;
  double scale;
  float* out;
  double* row_means;  // receives each row's mean m·kl; null if not wanted
};

// The inputs and outputs of an advantage function's passes.
struct AdvantagePass {
  const AdvantageBatch* batch;
  int index;  // of the function in the list of its shape
  const double* options;
  AdvantageOutputs outputs;
  // The column from which row_statistics are computed: kTokenRewards is summed, and kSampledLogprob is
  // averaged over unmasked tokens.
  AdvantageColumn statistic_of;
  double* row_statistics;
  const float* scores;  // per row; group functions only
  double* row_sums;     // divergence and advantage of each row; distillation only
  // A recurrence writes (a − shift)·scale, which whitens an advantage a.
  double shift, scale;
};

struct Target {
  const char* name;
  // Counts the unmasked tokens in [first, last) of a row. If `sum` is set, also computes the loss's row sum.
  RowPart (*row_pass)(const BatchView& batch, int loss_index, const void* loss, bool sum, int64_t row,
                      int64_t first, int64_t last);
  void (*token_pass)(const TokenPass& pass, const Chunk& chunk, ExactSums* sums);
  // If the chunk is a part of a row, writes its sum and count to `part`.
  void (*kl_pass)(const KlPass& pass, const Chunk& chunk, RowPart* part);
  // The passes of advantage functions. find_row_statistics, measure and recur need chunks of whole rows. If
  // the chunk is a part of a row, distill writes its two sums to `part`.
  void (*find_row_statistics)(const AdvantagePass& pass, const Chunk& chunk, NonFiniteValue* bad);
  void (*broadcast)(const AdvantagePass& pass, const Chunk& chunk);
  void (*measure)(const AdvantagePass& pass, const Chunk& chunk, Spread* spread, NonFiniteValue* bad);
  void (*recur)(const AdvantagePass& pass, const Chunk& chunk, NonFiniteValue* bad);
  void (*distill)(const AdvantagePass& pass, const Chunk& chunk, double* part);
};

// Returns the table for the widest instruction set that the processor and the operating system support. If
// the environment variable POLICY_LOSS_ISA names one, returns its table, or null if it cannot run here.
const Target* choose_target();

}  // namespace policy_loss::cpu

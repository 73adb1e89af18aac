// The arguments of the kernels, and the data that one kernel of a call leaves for the next.
//
// A batch is cut into spans: stretches of flat tokens, whatever rows lie in them, each of which is one warp's
// work. So all warps are equally busy with long and short rows, padded and packed ones, and every span begins
// at an address that is aligned for 16-byte loads. A row that several spans share leaves a part in each.
#pragma once

#include <cstdint>

#include "advantage/recurrence.h"
#include "cuda/cuda.h"
#include "engine/registry.h"

namespace policy_loss::cuda {

// Small blocks, so that the shared memory of a fed kernel's block (feed.cuh) fits a multiprocessor many
// times.
constexpr int kThreads = 128;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
// A quad is the four tokens of a lane: 16 bytes of a float32 column.
constexpr int kQuad = 4;
// A stretch is the tokens that a warp works on side by side.
constexpr int kStretch = kWarp * kQuad;
// A step is the tokens that a warp fetches at once. Spans begin at multiples of it.
constexpr int kSpanStep = 2 * kStretch;
// Long enough that the work per span costs nothing, short enough that a lane's float32 sums stay exact.
constexpr int kMaxSpan = 8192;
static_assert(kMaxSpan / kSpanStep <= 32, "a span's steps are bits of a 32-bit number");
// A device's arrays of tokens have a multiple of this size, so that 16 bytes of the narrowest type can be
// read at once even at the end of a batch.
constexpr int kGranule = 16;
// The most blocks of a fed kernel that a multiprocessor holds at once. Each then has enough registers for the
// arithmetic. Large blocks of shared memory allow fewer.
constexpr int kFedBlocksPerMultiprocessor = 4;
// The most blocks of other kernels.
constexpr int kBlocksPerMultiprocessor = 8;

// Takes the place of the policy loss in a function without one, and in kernels that all losses share.
struct NoLoss {
  using Row = NoRow;
  static constexpr LossTraits traits{};

  PL_FN TokenTerm token(const NoRow&, const Token&) const { return {0.0f, 0.0f}; }
};

// The sums that the row pass makes of a row, or of a span's share of it.
struct RowPart {
  double sum = 0;         // of the loss's row_term()
  int64_t tokens = 0;     // unmasked ones
  int64_t negatives = 0;  // tokens with a negative advantage

  PL_FN void add(const RowPart& other) {
    sum += other.sum;
    tokens += other.tokens;
    negatives += other.negatives;
  }
};

// The sums that a distillation function makes of a row, or of a span's share of it.
struct DistillPart {
  double divergence = 0, advantage = 0;

  PL_FN void add(const DistillPart& other) {
    divergence += other.divergence;
    advantage += other.advantage;
  }
};

// The arrays that hold such sums.
template <class Part>
struct Parts {
  Part* rows;   // [rows], of rows that lie within one span
  Part* heads;  // [spans], of the span's first row, if that row begins before the span
  Part* tails;  // [spans], of the span's last row, if that row ends after the span
};

// The weights and statistics of a row for the token pass. A weight is that of the reported sums, a gradient
// weight that of the gradient.
template <class Row>
struct RowState {
  double loss_weight, kl_weight, entropy_weight;
  float grad_weight, kl_grad_weight, entropy_grad_weight;
  int kind;
  unsigned repeats;  // how often the row counts; if 0, all other members are 0
  Row row;
};

// The row pass's findings about a span, for the token pass.
struct SpanState {
  int64_t first_row;    // the row of its first token
  unsigned live_steps;  // a bit for each step that has an unmasked token
};

// Counts of the batch, and how many blocks have finished a pass. Integers, because atomic additions of
// integers give the same sums in any order. All are 0 between calls: the last block of the pass that reads
// them resets them.
struct Totals {
  unsigned long long tokens[2];
  unsigned long long rows[2];
  unsigned row_ticket;
  unsigned token_ticket;
};

// The sums of the token pass, in the order of `Sums`: the loss by kind, its metrics, KL, entropy.
constexpr int kTokenSums = 2 + kMaxTokenMetrics + 2;

// A batch on a device, cut into spans.
struct SpannedBatch {
  BatchView batch;  // pointers to device memory
  int64_t tokens;
  int64_t span;        // the length of each span but the last
  int64_t spans;       // their number
  int64_t fed_blocks;  // the number of a fed kernel's blocks that run at once
};

// The arguments of the row pass, the weights pass and the token pass.
struct Pass : SpannedBatch {
  unsigned columns;  // the columns that the function reads
  Terms terms;
  Coefficients coefficients;
  Normalizer normalizer;

  Totals* totals;
  Parts<RowPart> parts;
  SpanState* span_states;  // [spans]
  void* states;            // [rows], a RowState of the loss's Row each
  double* pair_sums;       // [rows], for a loss over pairs
  double* row_partials;    // [blocks of the weights pass][kMaxRowMetrics]
  double* token_partials;  // [blocks of the token pass][kTokenSums]
  Result* result;
  float* grad;          // per token; null: not wanted
  float* grad_entropy;  // per token; null: not wanted
};

// The numbers that the kernels of an advantage function leave for each other. All are 0 when the call begins.
struct AdvantageState {
  // ~(8·row + NonFiniteInput) of the first value that is not finite, so that a maximum finds it; 0: none.
  unsigned long long non_finite;
  unsigned ticket;
  double shift, scale;  // whitening: (advantage − shift)·scale
};

// The arguments of the kernels of an advantage function.
struct AdvantagePass : SpannedBatch {  // its columns are AdvantageColumns
  const double* rewards;               // per row; null: the batch has none
  const double* baselines;             // per row; null: the batch has none
  uint64_t seed;
  AdvantageState* state;

  // Group functions.
  GroupsView groups;
  int row_value_column;  // the AdvantageColumn that row_values are made of
  Parts<RowPart> parts;
  double* row_values;      // per row: the sum of its token rewards, or its mean log-probability
  double* penalised;       // rewards after the rank penalty, in the order of groups.members; null: no penalty
  int64_t* negatives;      // scratch for drawing members to leave out, in the same order
  uint8_t* left_out;       // in the same order
  float* unit_scores;      // per unit; these are `scores` and `repeats` if every row is a unit
  uint32_t* unit_repeats;  // per unit
  int64_t* kept;           // the groups that are kept, from which duplicates are drawn
  uint32_t* drawn;         // per group, how often it was drawn
  GroupOutcome* outcomes;  // per group
  float* scores;           // per row
  uint32_t* repeats;       // per row

  // Recurrences.
  Spread* spreads;  // [blocks], of the unmasked advantages that a block has measured

  // Distillation.
  Parts<DistillPart> distill_parts;
  double* row_divergences;
  double* row_advantages;

  float* advantages;  // per token
  float* returns;     // per token; null: not wanted
};

// Whether rows are so long that a whole warp, instead of one thread, adds up a row's parts.
PL_FN bool is_row_for_warp(const SpannedBatch& batch) {
  constexpr int64_t many = 8;  // spans per row
  return batch.spans > many * batch.batch.layout.rows;
}

// The output of the KL kernel: KL values, or the base less `scale` times the unmasked ones. The base is in
// the slot of the advantages.
struct KlOutput {
  bool has_base;
  float scale;
  float* out;
};

}  // namespace policy_loss::cuda

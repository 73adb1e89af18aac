// The arguments of the kernels, and the data that one kernel of a call stores for the next.
//
// A batch is cut into spans: ranges of tokens of nearly equal length, which ignore where rows begin and end.
// A warp computes one span at a time. So all warps have equally much to do, whether rows are long or short,
// padded or packed. Every span begins at an address that is aligned for 16-byte loads. If several spans share
// a row, each span stores its part of the row's sums.
#pragma once

#include <cstdint>

#include "advantage/recurrence.h"
#include "cuda/cuda.h"
#include "engine/registry.h"

namespace policy_loss::cuda {

// Blocks are small, so that a multiprocessor's shared memory has room for several blocks of a fed kernel
// (feed.cuh).
constexpr int kThreads = 128;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
// A quad is the four neighbouring tokens that a lane computes together: 16 bytes of a float32 column.
constexpr int kQuad = 4;
// A stretch is the tokens that a warp computes together: one quad per lane.
constexpr int kStretch = kWarp * kQuad;
// A step is the tokens that a warp fetches at once. The length of a span is a multiple of it.
constexpr int kSpanStep = 2 * kStretch;
// The longest span. It is long enough to make the fixed cost of a span negligible, and short enough for a
// lane's float32 sums to stay accurate.
constexpr int kMaxSpan = 8192;
static_assert(kMaxSpan / kSpanStep <= 32, "a span's steps are bits of a 32-bit number");
// The number of tokens in a device's array is rounded up to a multiple of this. So kernels can read 16 bytes
// of the narrowest type at once even at the end of a batch.
constexpr int kGranule = 16;
// The most blocks of a fed kernel that run on a multiprocessor at once. With this many, each block still has
// enough registers. If a block needs much shared memory, fewer fit.
constexpr int kFedBlocksPerMultiprocessor = 4;
// The most blocks per multiprocessor in a grid of other kernels.
constexpr int kBlocksPerMultiprocessor = 8;

// Replaces the policy loss in a function without one, and in kernels that all losses share.
struct NoLoss {
  using Row = NoRow;
  static constexpr LossTraits traits{};

  PL_FN TokenTerm token(const NoRow&, const Token&) const { return {0.0f, 0.0f}; }
};

// The sums of the row pass over a row, or over the part of a row that lies in a span.
struct RowPart {
  double sum = 0;         // Σ row_term() of the loss
  int64_t tokens = 0;     // unmasked tokens
  int64_t negatives = 0;  // tokens with a negative advantage

  PL_FN void add(const RowPart& other) {
    sum += other.sum;
    tokens += other.tokens;
    negatives += other.negatives;
  }
};

// The sums of a distillation function over a row, or over the part of a row that lies in a span.
struct DistillPart {
  double divergence = 0, advantage = 0;

  PL_FN void add(const DistillPart& other) {
    divergence += other.divergence;
    advantage += other.advantage;
  }
};

// The arrays for the sums over rows and over parts of rows.
template <class Part>
struct Parts {
  Part* rows;   // [rows] the sums of rows that lie within one span
  Part* heads;  // [spans] the part of the span's first row, if that row begins before the span
  Part* tails;  // [spans] the part of the span's last row, if that row ends after the span
};

// The weights and statistics of a row for the token pass. A weight multiplies a token's value in the reported
// sums. A gradient weight multiplies the token's derivative in the gradient.
template <class Row>
struct RowState {
  double loss_weight, kl_weight, entropy_weight;
  float grad_weight, kl_grad_weight, entropy_grad_weight;
  int kind;
  unsigned repeats;  // how often the row counts; if 0, all other members are 0
  Row row;
};

// What the row pass found in a span. The token pass reads it.
struct SpanState {
  int64_t first_row;    // the row of the span's first token
  unsigned live_steps;  // bit k: step k has an unmasked token
};

// Counts of the batch, and how many blocks have finished a pass. They are integers, because atomic additions
// of integers give the same sum in any order. All are 0 between calls, because the last block of the pass
// that reads them resets them.
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
  int64_t span;        // the length of every span except the last
  int64_t spans;       // the number of spans
  int64_t fed_blocks;  // the most blocks of a fed kernel (feed.cuh) that the GPU runs at once
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
  void* states;            // [rows] of RowState<Row>, with the loss's Row
  double* pair_sums;       // [rows] the row sums of a loss over pairs
  double* row_partials;    // [blocks of the weights pass][kMaxRowMetrics]
  double* token_partials;  // [blocks of the token pass][kTokenSums]
  Result* result;
  float* grad;          // per token; null if not wanted
  float* grad_entropy;  // per token; null if not wanted
};

// The numbers that one kernel of an advantage function stores for the next. All are 0 when the call begins.
struct AdvantageState {
  // ~(8·row + NonFiniteInput) of the first value that is not finite, or 0 if there is none. The complement
  // lets atomicMax() find the first row.
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
  int row_value_column;  // the AdvantageColumn from which row_values are computed
  Parts<RowPart> parts;
  double* row_values;      // per row: the sum of its token rewards, or its mean log-probability
  double* penalised;       // rewards after the rank penalty, in the order of groups.members; null: no penalty
  int64_t* negatives;      // scratch for drawing members to leave out, in the same order
  uint8_t* left_out;       // in the same order
  float* unit_scores;      // per unit; the same array as `scores` if every row is a unit
  uint32_t* unit_repeats;  // per unit; the same array as `repeats` if every row is a unit
  int64_t* kept;           // the groups that are kept, from which duplicates are drawn
  uint32_t* drawn;         // per group, how often it was drawn
  GroupOutcome* outcomes;  // per group
  float* scores;           // per row
  uint32_t* repeats;       // per row

  // Recurrences.
  Spread* spreads;  // [blocks] the spread of the unmasked advantages that a block computed

  // Distillation.
  Parts<DistillPart> distill_parts;
  double* row_divergences;
  double* row_advantages;

  float* advantages;  // per token
  float* returns;     // per token; null if not wanted
};

// Returns whether rows are so long that a whole warp, instead of one thread, adds up the parts of a row.
PL_FN bool is_row_for_warp(const SpannedBatch& batch) {
  constexpr int64_t many = 8;  // spans per row
  return batch.spans > many * batch.batch.layout.rows;
}

// The output of the KL kernel: KL values, or base − scale·m·kl, where m is the mask. The base takes the slot
// of the advantages in the batch.
struct KlOutput {
  bool has_base;
  float scale;
  float* out;
};

}  // namespace policy_loss::cuda

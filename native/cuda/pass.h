// What the host hands to the kernels of a call, and what the kernels hand to each other: one struct, passed
// by value to each.
//
// The batch is cut into spans of flat tokens, each the work of one warp, whatever rows lie in it; so long
// rows and short ones, padded and packed ones keep all warps equally busy, and every span begins at an
// address that is aligned for 16-byte loads. A row that several spans share leaves a part in each.
#pragma once

#include <cstdint>

#include "advantage/recurrence.h"
#include "cuda/cuda.h"
#include "engine/registry.h"

namespace policy_loss::cuda {

// Few, so that the shared memory which a block of the kernels that are fed has (feed.cuh) fits many times.
constexpr int kThreads = 128;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
// Four tokens a lane: 16 bytes of a float32 column.
constexpr int kQuad = 4;
// Tokens that a warp works on side by side.
constexpr int kStretch = kWarp * kQuad;
// Tokens that are sent for at once; spans begin at multiples of them.
constexpr int kSpanStep = 2 * kStretch;
// So long that what a warp does once a span costs nothing, so short that a lane's float32 sums keep their
// digits.
constexpr int kMaxSpan = 8192;
static_assert(kMaxSpan / kSpanStep <= 32, "a span's steps are bits of a number");
// A device's arrays of tokens are made of whole granules of so many, so that even of the narrowest 16 bytes
// can be read at once, at a batch's end too.
constexpr int kGranule = 16;
// Blocks of the token pass that a multiprocessor is to hold at once: no more, which leaves registers enough
// for the arithmetic, and fewer where it has not the shared memory for them.
constexpr int kFedBlocksPerMultiprocessor = 4;
// Blocks of other kernels.
constexpr int kBlocksPerMultiprocessor = 8;

// The place of the policy loss where a function has none, or where a pass need not know it.
struct NoLoss {
  using Row = NoRow;
  static constexpr LossTraits traits{};

  PL_FN TokenTerm token(const NoRow&, const Token&) const { return {0.0f, 0.0f}; }
};

// The row pass's finding about a row, or about a span's share of one.
struct RowPart {
  double sum = 0;
  int64_t tokens = 0;
  int64_t negatives = 0;

  PL_FN void add(const RowPart& other) {
    sum += other.sum;
    tokens += other.tokens;
    negatives += other.negatives;
  }
};

// Likewise of distillation.
struct DistillPart {
  double divergence = 0, advantage = 0;

  PL_FN void add(const DistillPart& other) {
    divergence += other.divergence;
    advantage += other.advantage;
  }
};

// Where such findings are left.
template <class Part>
struct Parts {
  Part* rows;   // of rows that lie within one span
  Part* heads;  // of each span's first row, where that began before the span
  Part* tails;  // of each span's last row, where that goes on after the span
};

// What the token pass must know of a row. The weights are those of the reported sums; the float32 ones are
// those of the gradient.
template <class Row>
struct RowState {
  double loss_weight, kl_weight, entropy_weight;
  float grad_weight, kl_grad_weight, entropy_grad_weight;
  int kind;
  unsigned repeats;  // of a row with 0 nothing else is set
  Row row;
};

// What the token pass must know of a span.
struct SpanState {
  int64_t first_row;    // that its first token is in
  unsigned live_steps;  // a bit for each step that has an unmasked token
};

// Integers, so that atomic additions give the same sums in any order. All zero between calls: the last block
// of the pass that reads them leaves them so.
struct Totals {
  unsigned long long tokens[2];
  unsigned long long rows[2];
  unsigned row_ticket;
  unsigned token_ticket;
};

// Sums of the token pass that its blocks leave behind for the last of them.
constexpr int kTokenSums = 2 + kMaxTokenMetrics + 2;

struct Pass {
  BatchView batch;  // pointers to device memory
  int64_t tokens;
  int64_t span, spans;  // their length and their number
  int64_t fed_blocks;   // that run at once, of kernels that are fed
  unsigned columns;     // those that the function reads

  Terms terms;
  Coefficients coefficients;
  Normalizer normalizer;

  Totals* totals;
  Parts<RowPart> parts;
  SpanState* span_states;
  void* states;            // a RowState of each row
  double* pair_sums;       // of each row, for a loss over pairs
  double* row_partials;    // [blocks of the weights pass][kMaxRowMetrics]
  double* token_partials;  // [blocks of the token pass][kTokenSums]
  Result* result;
  float* grad;
  float* grad_entropy;
};

// What the kernels of an advantage function find beside their results. All zero when the call begins.
struct AdvantageState {
  // ~(8·row + NonFiniteInput) of the first number that is not finite, so that a maximum finds it; 0: there is
  // none.
  unsigned long long bad;
  unsigned ticket;
  // How advantages are whitened.
  double shift, scale;
};

// The same for the kernels of an advantage function, which use what they need of it.
struct AdvantagePass {
  BatchView batch;  // pointers to device memory; columns are AdvantageColumns
  int64_t tokens;
  int64_t span, spans;      // as in Pass
  int64_t fed_blocks;       // likewise
  const double* rewards;    // per row; null: not there
  const double* baselines;  // per row
  uint64_t seed;
  AdvantageState* state;

  // Of group functions.
  GroupsView groups;
  int facts_of;  // an AdvantageColumn: what `facts` are made of
  Parts<RowPart> parts;
  double* facts;       // per row: the sum of its token rewards, or the mean of its log-probabilities
  double* penalised;   // rewards in the order of groups.members, less what their rank takes; null: nothing
  int64_t* drawn;      // room to draw from, in the same order
  uint8_t* left_out;   // in the same order
  float* unit_scores;  // where units are runs, scores and repeats of these
  uint32_t* unit_repeats;  // likewise
  int64_t* kept;           // the groups that are, for duplicates to be drawn from
  uint32_t* again;         // per group, how often it was drawn
  GroupOutcome* outcomes;  // per group
  float* scores;           // per row
  uint32_t* repeats;       // per row

  // Of recurrences.
  Spread* spreads;  // of each block, of the unmasked advantages that it has measured
  // Of distillation.
  Parts<DistillPart> distill_parts;
  double* row_divergences;
  double* row_advantages;

  float* advantages;  // per token
  float* returns;     // per token; null: not asked for
};

// Whether rows are so long that a warp puts a row's parts together, and not a thread.
template <class AnyPass>
PL_FN bool is_row_for_warp(const AnyPass& pass) {
  constexpr int64_t many = 8;  // spans a row
  return pass.spans > many * pass.batch.layout.rows;
}

// The output of the KL values' pass: the values, or where the batch has a base (in the place of advantages)
// the base less `scale` times the unmasked ones.
struct KlOutput {
  bool has_base;
  float scale;
  float* out;
};

}  // namespace policy_loss::cuda

// The passes of the CPU engine, as a table of functions. Each function computes one chunk of a batch. There
// is one table per instruction set, and choose_target() selects a table that this machine can run.
#pragma once

#include <cstdint>

#include "cpu/product.h"
#include "engine/advantages.h"
#include "engine/exact_sums.h"
#include "engine/function.h"
#include "logits/softmax.h"
#include "program/program.h"
#include "program/select.h"

namespace policy_loss::cpu {

class Task;
// Returns whether a task was aborted. The loops over all rows ask this now and then.
bool is_aborted(Task& task);

// What one thread computes at a time: several whole rows, or some tokens of one long row. Only the batch's
// layout determines the chunks. So the number of threads does not change how the sums are rounded.
struct Chunk {
  int64_t first_row, last_row;      // last_row is one past the end
  int64_t first_token, last_token;  // in the row, or 0 and -1 for whole rows

  PL_FN bool is_within_row() const { return last_token >= 0; }
  PL_FN int64_t first_token_of_row() const { return last_token >= 0 ? first_token : 0; }
  PL_FN int64_t last_token_of_row(const Layout& layout, int64_t row) const {
    return last_token >= 0 ? last_token : layout.length(row);
  }
};

// What a pass computes of a user-defined loss: some consecutive segments of its program.
struct ProgramPass {
  const program::ProgramView* program;  // null for other losses
  int first_segment, last_segment;      // the segments [first_segment, last_segment)
  // row_stride() numbers per row: its row values, then the operands of reductions over rows, in the order of
  // the batch values that they write. Null if the program has no batch segment.
  double* row_values;
  double* batch_values;
  double* batch_metrics;
  // gathered_stride numbers for each row_gather: the gathered values for selections. If the program has a
  // batch segment, the values of a row begin where the row begins in the batch. Otherwise, the rows of a
  // chunk use the same memory one after another.
  float* gathered;
  int64_t gathered_stride;
  // scanned_stride numbers for each scanned value. If the program has several passes, the numbers of a row
  // begin at scanned_begin(). Otherwise, the rows of a chunk use the same memory one after another.
  float* scanned;
  int64_t scanned_stride;
  uint64_t* keys;  // one per token of a row, to sort the row's values; null if the program has no ranks
};

// The values that one row_gather stores of the whole batch.
struct GatheredValues {
  const float* values;
  const int64_t* tokens;  // per row: the number of its values
  const BatchView* batch;

  // Returns the values of a row. They have no gaps for masked tokens.
  PL_FN const float* of_row(int64_t row) const { return values + batch->layout.begin(row); }
};

// The numbers between the scanned values of two rows, so that the last tile of a row has room.
constexpr int64_t kScannedPadding = 64;
PL_FN int64_t scanned_begin(const Layout& layout, int64_t row) {
  return layout.begin(row) + row * kScannedPadding;
}

// Returns how many numbers ProgramPass::row_values has per row.
PL_FN int64_t row_stride(const program::ProgramView& program) {
  return program.row_values + program.batch_values;
}

// The inputs and outputs of the token pass.
struct TokenPass {
  Task* task;
  const Terms* terms;
  const BatchView* batch;
  const void* loss;  // the loss object of a PreparedFunction
  ProgramPass program;
  BatchCounts counts;
  KindScales scales;
  Coefficients coefficients;
  const int64_t* row_tokens;  // unmasked tokens per row
  const int64_t* row_ends;    // per row, one past its last unmasked token; 0 if it has none
  // The sums of row_term() of the rows that are divided among several chunks. For a loss over pairs of rows,
  // they are the gradient weights of all rows instead.
  const double* row_sums;
  const double* row_negatives;  // tokens with a negative advantage, of rows that several chunks share
  GradientView grad, grad_entropy;
  float* grad_log_z;  // null if not wanted
};

// Returns whether a row takes part in the program's computation of rows and in reductions over rows.
PL_FN bool takes_part(const TokenPass& pass, int64_t row) {
  return pass.batch->repeats_of(row) > 0 && (pass.row_tokens[row] > 0 || pass.program.program->all_rows);
}

// Returns how many tokens at the start of a row are known to be unmasked: all up to the last unmasked one, or
// none if there are holes among them.
PL_FN int64_t solid_tokens(const TokenPass& pass, int64_t row) {
  return pass.row_tokens[row] == pass.row_ends[row] ? pass.row_ends[row] : 0;
}

// The result of the row pass or of the KL pass for one row, or for a row's tokens in one chunk.
struct RowTotals {
  int64_t tokens = 0;
  int64_t end = 0;  // the position in the row after the last unmasked token; 0 if there is none
  double sum = 0;
  double negatives = 0;
};

// The inputs and outputs of the KL pass. With a base, the pass computes out = base − scale·kl for unmasked
// tokens and out = base for masked ones. Without a base, it computes out = kl for every token.
struct KlPass {
  int estimator;
  const BatchView* batch;
  const float* base;
  double scale;
  float* out;
  double* row_means;  // receives each row's mean kl over unmasked tokens; null if not wanted
};

// The inputs and outputs of the passes of an advantage function.
struct AdvantagePass {
  const AdvantageBatch* batch;
  int index;  // of the function in the list of its shape
  const double* options;
  AdvantageOutputs outputs;
  // The column from which row_statistics are computed. A row's statistic is the sum of
  // kTokenLevelRewardsInput, or the mean of kOldLogprobInput over the unmasked tokens.
  AdvantageColumn statistic_of;
  double* row_statistics;  // null if not wanted
  double* row_tokens;      // receives the unmasked tokens of each row; null if not wanted
  const float* scores;     // per row; group functions only
  double* row_sums;        // divergence and advantage of each row; distillation only
  // For a recurrence: the pass writes (a − shift)·scale for each advantage a. This whitens the advantages if
  // the function needs that.
  double shift, scale;
};

// The rows of one group of a function with a baseline per token, and memory for intermediate results.
struct BaselineRows {
  const int64_t* rows;
  int64_t size;
  // Receive, for each place (see advantage/token_baseline.h), the sum of the energies and the sum of
  // energy·(reward to go). They must be 0 at first. The second then receives the baselines.
  double* weights;
  double* weighted;
  double* to_go;  // for the tokens of the longest row
};

// The logits of one row that take part in its softmax: all of them, or those of the support's tokens.
struct LogitsRow {
  const void* data;  // the row's logits
  DType dtype;
  int64_t vocabulary;
  const int32_t* token_ids;  // the support; null if all tokens take part
  int64_t length;            // the number of logits that take part
  int64_t target;            // the target's index among them
  float softcap;             // 0 for none
  double temperature;
};

// The logits that are computed at a time, so that they stay in the L1 cache. Rows are divided into such tiles
// from their start on.
constexpr int kLogitsTile = 4096;

// How the terms of a tile are saved: relative to which number, for which the term would be 1, and in which
// order. In pairs, of each kSumLanes logits, those at even places come before those at odd places.
struct TermsOfTile {
  float reference;
  int32_t in_pairs;
};

// The terms of a row's sums, which are saved so that the gradient need not compute them again. The memory for
// terms has room for the row's length, rounded up to a multiple of kLogitsGranule. It may be the row's
// logits, if the gradient does not need them, or the row's gradient.
constexpr int kLogitsGranule = 64;
struct LogitsTerms {
  float* term = nullptr;        // per logit; null if they are not saved
  TermsOfTile* tile = nullptr;  // per tile
  float* target = nullptr;      // the target's capped logit
  // The logits of the row that this thread will probably compute after this one. It prefetches them while it
  // computes this row. Null if the terms are not saved, after the last row, and for an ignored row.
  const void* next_row = nullptr;
};

// The logits of a row are divided into groups. Of each kSumLanes·kGroupedLogits consecutive logits, each
// group has those whose indices differ by multiples of kSumLanes.
constexpr int kGroupedLogits = 16;
constexpr int64_t kLogitsOfGroups = kSumLanes * kGroupedLogits;  // of kSumLanes groups
static_assert(kLogitsTile % kLogitsOfGroups == 0);
PL_FN int64_t logit_groups(int64_t vocabulary) {
  return (vocabulary + kLogitsOfGroups - 1) / kLogitsOfGroups * kSumLanes;
}

struct Target {
  const char* name;
  // Counts the unmasked tokens in [first, last) of a row. If `sum` is set, also computes the row sum that the
  // loss needs.
  RowTotals (*row_pass)(const BatchView& batch, int loss_index, const void* loss, bool sum, int64_t row,
                        int64_t first, int64_t last);
  void (*token_pass)(const TokenPass& pass, const Chunk& chunk, ExactSums* sums);
  // Computes the row values of a user-defined loss that the pass's segments write. The chunk must consist of
  // whole rows.
  void (*program_pass)(const TokenPass& pass, const Chunk& chunk);
  // Ends a program pass or the token pass: computes the reductions over rows, and then runs the batch segment
  // that follows the pass's segments.
  void (*program_batch)(const TokenPass& pass);
  // Adds the values of a chunk's rows to the bins of the next digit of a search. Each counts as often as its
  // row does.
  void (*count_digits)(const Digit& digit, const GatheredValues& gathered, const Chunk& chunk, Bin* bins);
  // Writes the keys of those of n values that begin with the known digits to `keys`, at most `most` of them.
  // Returns how many it has written.
  int (*gather_keys)(const Digit& digit, const float* values, int64_t n, uint32_t* keys, int most);
  // Returns how many values of a row have a key.
  int64_t (*count_key)(uint32_t key, const GatheredValues& gathered, int64_t row);
  // If the chunk is within a row, writes the sum of its KL values and its count of unmasked tokens to
  // `partial`.
  void (*kl_pass)(const KlPass& pass, const Chunk& chunk, RowTotals* partial);
  // The passes of advantage functions. The chunks of find_row_statistics, measure and recur must consist of
  // whole rows. If the chunk of distill is within a row, distill writes its sums to `partial`.
  void (*find_row_statistics)(const AdvantagePass& pass, const Chunk& chunk, NonFiniteValue* bad);
  void (*broadcast)(const AdvantagePass& pass, const Chunk& chunk);
  // Fills the Spread of each of the chunk's rows.
  void (*measure)(const AdvantagePass& pass, const Chunk& chunk, Spread* spreads, NonFiniteValue* bad);
  void (*recur)(const AdvantagePass& pass, const Chunk& chunk, NonFiniteValue* bad);
  void (*distill)(const AdvantagePass& pass, const Chunk& chunk, double* partial);
  // Writes the advantages of a group for a function with a baseline per token.
  void (*subtract_baselines)(const AdvantagePass& pass, const BaselineRows& group, NonFiniteValue* bad);
  // Sums over the logits [first, last) of a row, where `first` is the start of a tile, and adds the result to
  // *sums. If the target is among these logits, sets *target to its capped logit. Without with_entropy,
  // SoftmaxSums::weighted stays 0. Saves the terms if `saved` has memory for them.
  void (*sum_logits)(const LogitsRow& row, bool with_entropy, int64_t first, int64_t last,
                     const LogitsTerms& saved, SoftmaxSums* sums, double* target);
  // Writes the gradient with respect to the logits [first, last) of a row to the same indices of `out`, which
  // has the dtype out_dtype. It may be the logits themselves. If the terms of the sums were saved, uses them.
  void (*logits_gradient)(const LogitsRow& row, const SoftmaxGradient& gradient, bool with_entropy,
                          int64_t first, int64_t last, const LogitsTerms& saved, void* out, DType out_dtype);
  // Writes the largest logit of each group of a row; −Infinity if a group has none but NaN.
  void (*largest_of_groups)(const LogitsRow& row, float* largest);
  // Computes a part of the elements of a product.
  void (*multiply)(const Product& product, const ProductPart& part, ProductMemory* memory);
};

// Returns the table for the widest instruction set that the processor and the operating system support. If
// the environment variable POLICY_LOSS_ISA names an instruction set, returns the table for that set instead,
// or null if it cannot run here.
const Target* choose_target();

}  // namespace policy_loss::cpu

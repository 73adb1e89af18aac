// Programs: user-defined losses in the form that the engines run. lib/program compiles a loss to a program.
//
// A program is a list of instructions in segments. A segment computes one kind of value:
// - A token segment runs for all unmasked tokens of a row. Its instructions write registers, which hold one
//   float32 number per token. Reductions over the row write row values.
// - A row segment runs once per row, after the token segment before it. It writes row values, which are
//   float64. Reductions over all rows write batch values.
// - A batch segment runs once, after all rows have run the segments before it. It writes batch values, which
//   are float64. The batch values of reductions before it are then available.
// Segments run in their order. One token segment outputs the losses, the gradients and the metrics of the
// tokens. Segments after it compute the losses and metrics of rows, and then, in a batch segment at the end,
// the metrics of the batch. Every value is written before it is read, and written only once. Only
// registers are reused.
//
// Reductions over a row have 32 partial results, by a token's position in the row modulo 32. The sums of
// every kSumTokens tokens are added up in their order, so that a GPU can compute them at the same time.
// Reductions over rows have as many partial results, by the row's index. All engines combine the partial
// results in the same order, so they compute the same bits. A row that counts 0 times is skipped, and so is a
// row without unmasked tokens unless the program wants all rows.
//
// Selections find order statistics. A token segment gathers the values of the row's unmasked tokens
// (row_gather), and a row segment selects among those of the row (row_rank), or among those of all rows
// (rows_rank, …). Each gathered value counts as often as its row. −0 counts as 0, and NaN as larger than any
// other number.
//
// A scan gives each token of a row a float32 number that depends on other tokens of the row. It is stored,
// and later token segments read it like a column. Scans add up in float64:
// - A running sum first takes sums over windows of eight tokens, in three rounds. Round k = 0, 1, 2 adds to
//   each number decay^(2^k) times the number 2^k tokens before. Tokens before the row count as 0. The running
//   sum of a token is its window's sum plus decay^8 times the running sum eight tokens before. Each power is
//   the square of the one before. suffix_sum does the same from the row's last token on.
// - The sum over a turn has 32 partial results, as a reduction over a row has.
// - Ranks are whole numbers. −0 counts as 0, and NaN as larger than any other number.
//
// A reduction over groups gives all rows of a group the same row value, which can be read after the next
// batch segment. It adds up in the order of the rows, in float64.
#pragma once

#include <cstdint>

#include "columns.h"

namespace policy_loss::program {

// Lists all operations as X(name, number of operands). An operand that an operation does not use is 0.
// clang-format off
#define POLICY_LOSS_PROGRAM_OPS(X)                                                                     \
  /* Begin a segment. */                                                                               \
  X(tokens, 0) X(row, 0) X(batch, 0)                                                                   \
  /* Arithmetic, in every segment. Conditions are the numbers 0 and 1. */                              \
  X(add, 2) X(sub, 2) X(mul, 2) X(div, 2) X(min, 2) X(max, 2) X(pow, 2)                                \
  X(mul_no_nan, 2) /* the product, but 0 where one factor is 0 and the other infinite */               \
  X(lt, 2) X(le, 2) X(eq, 2)                                                                           \
  X(neg, 1) X(abs, 1) X(sign, 1) X(sqrt, 1) X(floor, 1) X(exp, 1) X(expm1, 1) X(exp_residual, 1)                   \
  /* e^x, which takes few instructions where expm1(x) or exp_residual(x) is computed too. */           \
  X(exp_with_residual, 1)                                                                              \
  X(log, 1) X(log1p, 1) X(tanh, 1) X(sigmoid, 1) X(logsigmoid, 1)                                      \
  X(select, 3) /* the second operand if the first, a condition, is not 0; otherwise the third */       \
  X(clip, 3)   /* the first operand, at least the second and at most the third */                      \
  /* The third operand if the first is less than, at most, or equal to the second; otherwise the fourth. */ \
  X(select_lt, 4) X(select_le, 4) X(select_eq, 4)                                                      \
  /* 1 for the token at the position in the row that the operand, a value of the row, gives; else 0. In token segments. */ \
  X(is_at, 1)                                                                                          \
  /* 1 for the tokens up to the place in the batch that the operand, the same for all tokens of a row, gives; else 0. In token segments. */ \
  X(is_up_to, 1)                                                                                       \
  /* A random number from 0 to 1, which depends on the seed in the operand, on the row and on the token's position. In token segments. */ \
  X(draw, 1)                                                                                           \
  /* 1 in the row whose index the operand gives; else 0. In row segments. */                           \
  X(is_row, 1)                                                                                         \
  /* The value with the rank in the second operand, from 0 for the smallest, of those that row_gather stored. In row segments. */ \
  X(row_rank, 2)                                                                                       \
  /* Reductions over a row. In token segments; they write a row value. arg_…: the position of the first smallest or largest. */ \
  X(row_sum, 1)                                                                                        \
  /* The same as row_sum, but kSumTokens tokens are summed in float32. For sums that serve only metrics and */ \
  /* comparisons, and for counts of tokens. */                                                         \
  X(row_sum_single, 1)                                                                                 \
  X(row_min, 1) X(row_max, 1) X(row_arg_min, 1) X(row_arg_max, 1)                        \
  /* Keep the values of the row's tokens; the row value is their number, and stands for them in selections. */ \
  X(row_gather, 1)                                                                                       \
  /* Scans, in token segments; they write scanned values. x is the first operand, and 0 for a masked token. The */ \
  /* second one, the decay, is the same for all tokens of a row. */                                    \
  X(prefix_sum, 2) /* x plus decay times the result of the token before */                             \
  X(suffix_sum, 2) /* x plus decay times the result of the token after */                              \
  X(turn_sum, 1)    /* the sum of x over the turn that holds the token */  \
  X(token_rank, 1)  /* how many unmasked tokens of the row have a smaller x, or the same x and come before */ \
  /* Reductions over all rows. In row segments; they write a batch value. */                           \
  X(rows_sum, 1) X(rows_min, 1) X(rows_max, 1) X(rows_arg_min, 1) X(rows_arg_max, 1)                   \
  /* Selections over all rows. In row segments; they write a batch value. The first operand is the row value of row_gather; */ \
  /* the second is that of the first row which takes part. The value with a rank; the place of its token, where the first of equal values comes first; */ \
  /* the largest number of smallest values whose mean is less than the operand; the number of values below the level up to */ \
  /* which all values must be cut for their sum to fall to the operand. */                             \
  X(rows_rank, 2) X(rows_rank_at, 2) X(rows_under_mean, 2) X(rows_under_fill, 2)                       \
  /* Reductions over the rows of a group (kNextInGroup), or of a pair (kNextInPair, or rows 2i and 2i + 1). */ \
  /* In row segments; they write a row value. arg_max: the index of the first row with the largest operand. */ \
  X(group_sum, 1) X(group_max, 1) X(group_arg_max, 1) X(pair_sum, 1)                                   \
  /* Compare all rows with each other. In row segments; they write a row value. The row's rank, from 0 for */ \
  /* the smallest operand; equal operands rank in the order of their rows. The first operand in the row */ \
  /* whose third operand is the second operand of this row, or 0 if there is none; both are ranks. */   \
  X(rank_of_row, 1) X(at_rank, 3)                                                                      \
  /* Output a token's loss, its term in metric number `out`, and the gradients with respect to logprob and */ \
  /* to entropy. An output is the product of two operands, of which the second is the same for all tokens */ \
  /* of a row. */                                                                                      \
  X(loss, 2) X(grad, 2) X(metric, 2) X(grad_entropy, 2)                                                \
  /* Add a number, times how often the row counts, to the loss and to metric number `out`. In row segments */ \
  /* after the outputs. */                                                                             \
  X(row_loss, 1) X(row_metric, 1)                                                                      \
  /* Output a row's gradient with respect to log_z, or to its reward in a loss of rewards. In row segments after the outputs. */ \
  X(grad_log_z, 1)                                                                                     \
  /* Output metric number `out` of the batch. In the batch segment after the outputs. */              \
  X(batch_metric, 1)
// clang-format on

enum class Op : uint8_t {
#define X(name, operands) k_##name,
  POLICY_LOSS_PROGRAM_OPS(X)
#undef X
};

constexpr const char* kOpNames[] = {
#define X(name, operands) #name,
    POLICY_LOSS_PROGRAM_OPS(X)
#undef X
};
constexpr int kOpOperands[] = {
#define X(name, operands) operands,
    POLICY_LOSS_PROGRAM_OPS(X)
#undef X
};
constexpr int kOps = sizeof kOpOperands / sizeof kOpOperands[0];

// Returns whether an operation computes a number from numbers, as opposed to reductions and outputs.
PL_FN constexpr bool is_arithmetic(Op op) {
  return op >= Op::k_add && op <= Op::k_select_eq;
}
PL_FN constexpr bool is_row_reduction(Op op) {
  return op >= Op::k_row_sum && op <= Op::k_row_gather;
}
PL_FN constexpr bool is_rows_reduction(Op op) {
  return op >= Op::k_rows_sum && op <= Op::k_rows_under_fill;
}
// Returns whether an operation selects among the gathered values of all rows.
PL_FN constexpr bool is_rows_selection(Op op) {
  return op >= Op::k_rows_rank && op <= Op::k_rows_under_fill;
}
// Returns whether an operation computes a number from a token's position and an operand of the row.
PL_FN constexpr bool is_of_position(Op op) {
  return op >= Op::k_is_at && op <= Op::k_draw;
}
PL_FN constexpr bool is_scan(Op op) {
  return op >= Op::k_prefix_sum && op <= Op::k_token_rank;
}
PL_FN constexpr bool is_group_reduction(Op op) {
  return op >= Op::k_group_sum && op <= Op::k_at_rank;
}
// Returns whether an operation compares all rows with each other.
PL_FN constexpr bool compares_rows(Op op) {
  return op == Op::k_rank_of_row || op == Op::k_at_rank;
}
PL_FN constexpr bool is_output(Op op) {
  return op >= Op::k_loss && op <= Op::k_grad_entropy;
}
PL_FN constexpr bool is_row_output(Op op) {
  return op == Op::k_row_loss || op == Op::k_row_metric;
}

// Describe a reduction over a row or over rows: a sum, a position, or an extreme that is the largest.
PL_FN constexpr bool is_sum(Op op) {
  return op == Op::k_row_sum || op == Op::k_row_sum_single || op == Op::k_rows_sum;
}
PL_FN constexpr bool is_position(Op op) {
  return op == Op::k_row_arg_min || op == Op::k_row_arg_max || op == Op::k_rows_arg_min ||
         op == Op::k_rows_arg_max;
}
PL_FN constexpr bool is_largest(Op op) {
  return op == Op::k_row_max || op == Op::k_row_arg_max || op == Op::k_rows_max || op == Op::k_rows_arg_max;
}

// The kinds of operands. The indices of kRowInput, kBatchInput and kRowColumn are those of RowInput,
// BatchInput and RowColumn. A row segment can read a column that has one value per row.
enum class Kind : uint8_t {
  kRegister,
  kColumn,
  kConstant,
  kRowValue,
  kBatchValue,
  kRowInput,
  kBatchInput,
  kRowColumn,
  kScanned
};
constexpr int kKinds = 9;

// The numbers of a row that a program gets: how many unmasked tokens it has, the weight of its tokens in the
// loss, how often it counts, its place in its pair of rows, which is 0 or 1, and its index. The weight
// includes how often the row counts. The place is 2 for a row that is the next one of itself (kNextInPair).
enum RowInput { kRowTokens, kRowWeight, kRowRepeats, kPlaceInPair, kRowIndex };
constexpr int kRowInputs = 5;

// The numbers of the whole batch that a program gets: unmasked tokens, rows, and the row length T. Tokens and
// rows count as often as their rows do. If the batch is a part, they are those of the whole.
enum BatchInput { kBatchTokens, kBatchRows, kRowLength };
constexpr int kBatchInputs = 3;

// A place in the batch is the number of a token: this times the row's index, plus the position in the row.
constexpr double kPlacesPerRow = 1 << 30;

// The rounds in which running sums take sums over windows.
constexpr int kWindowRounds = 3;

constexpr int kMaxOperands = 4;

struct Operand {
  Kind kind;
  uint8_t index;
};

// It is aligned so that a GPU loads it at once.
struct alignas(16) Instruction {
  Op op;
  uint8_t operands;  // how many the operation has
  uint16_t out;
  Operand operand[kMaxOperands];
};

// The limits on the size of a program. The registers of a tile fit into the L1 cache.
constexpr int kMaxRegisters = 32;
constexpr int kMaxInstructions = 4096;
constexpr int kMaxValues = 256;        // of each kind: constants, row values, batch values
constexpr int kMaxReductions = 16;     // in one segment, scans among them
constexpr int kMaxProgramColumns = 9;  // that one program reads
constexpr int kMaxScanned = 16;
constexpr int kMaxGathered = 4;  // the row values of row_gather have numbers below this
constexpr int kMaxBatchMetrics = 48;
constexpr int kMaxBatchSegments = 61;

// A segment without the instruction that begins it.
struct Segment {
  Op kind;          // k_tokens, k_row or k_batch
  int first, last;  // instructions [first, last)
  int reductions;   // how many reductions over a row it has
  int scans;        // how many scans it has
  int compiled;     // the index of the compiled segment (see compiled.h) that it begins, or -1
  int first_uniform, last_uniform;  // the operands uniforms[first, last) are the numbers that this one reads
};

// Returns whether a segment, number `at` of its program, follows the one with the outputs and is compiled
// together with it. Then only that one has the index of the compiled segment.
PL_FN constexpr bool joins_outputs(const Segment& segment, int at, int output_segment) {
  return at == output_segment + 1 && segment.kind == Op::k_tokens && segment.scans == 0;
}

// A view of a program as plain arrays, which can be copied to every device.
struct ProgramView {
  const Instruction* instructions = nullptr;
  const Segment* segments = nullptr;
  const double* constants = nullptr;
  const Operand* uniforms = nullptr;
  int instruction_count = 0, segment_count = 0, constant_count = 0, uniform_count = 0;
  int registers = 0, row_values = 0, batch_values = 0, scanned = 0;
  int metrics = 0, batch_metrics = 0;  // `metrics` are those of tokens and rows
  int output_segment = 0;              // the segment with the outputs
  bool has_batch_segment = false;
  // Whether a batch segment comes before the outputs.
  bool has_several_passes = false;
  int interpreted = 0;          // the instructions of token segments for which no loop is compiled
  int gathered = 0;             // one more than the largest row value of row_gather
  bool has_grad = false;        // whether it outputs gradients with respect to logprob
  bool has_other_grad = false;  // whether it outputs gradients with respect to other columns
  bool has_ranks = false;       // whether it computes ranks of tokens
  bool all_rows = false;        // whether rows without unmasked tokens take part
  unsigned columns = 0;         // the columns that it reads
  unsigned row_columns = 0;     // the row columns that it reads

  // Returns whether one of the segments [first, last) computes tokens.
  PL_FN bool has_tokens(int first, int last) const {
    for (int s = first; s < last; ++s)
      if (segments[s].kind == Op::k_tokens) return true;
    return false;
  }

  // Returns the columns that the tokens of the segments [first, last) read.
  PL_FN unsigned token_columns(int first, int last) const {
    unsigned read = 0;
    for (int s = first; s < last; ++s) {
      if (segments[s].kind != Op::k_tokens) continue;
      for (int i = segments[s].first; i < segments[s].last; ++i)
        for (const Operand& x : instructions[i].operand)
          if (x.kind == Kind::kColumn) read |= reads(x.index);
    }
    return read;
  }
};

}  // namespace policy_loss::program

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
// Reductions over a row have 32 partial results, by a token's position in the row modulo 32.
// Reductions over rows have as many, by the row's index. All engines combine the partial results in the same
// order, so they compute the same bits. A row that counts 0 times is skipped, and so is a row without
// unmasked tokens unless the program wants all rows.
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
  X(lt, 2) X(le, 2) X(eq, 2)                                                                           \
  X(neg, 1) X(abs, 1) X(sign, 1) X(sqrt, 1) X(exp, 1) X(expm1, 1) X(exp_residual, 1)                   \
  X(log, 1) X(log1p, 1) X(tanh, 1) X(sigmoid, 1) X(logsigmoid, 1)                                      \
  X(select, 3) /* the second operand if the first, a condition, is not 0; otherwise the third */       \
  X(clip, 3)   /* the first operand, at least the second and at most the third */                      \
  /* The third operand if the first is less than, at most, or equal to the second; otherwise the fourth. */ \
  X(select_lt, 4) X(select_le, 4) X(select_eq, 4)                                                      \
  /* 1 for the token at the position in the row that the operand, a value of the row, gives; else 0. In token segments. */ \
  X(is_at, 1)                                                                                          \
  /* 1 in the row whose index the operand, a batch value, gives; else 0. In row segments. */           \
  X(is_row, 1)                                                                                         \
  /* Reductions over a row. In token segments; they write a row value. arg_…: the position of the first smallest or largest. */ \
  X(row_sum, 1) X(row_min, 1) X(row_max, 1) X(row_arg_min, 1) X(row_arg_max, 1)                        \
  /* Reductions over all rows. In row segments; they write a batch value. */                           \
  X(rows_sum, 1) X(rows_min, 1) X(rows_max, 1) X(rows_arg_min, 1) X(rows_arg_max, 1)                   \
  /* Output a token's loss, its gradient (the product of two operands, of which the second is the same for */ \
  /* all tokens of a row), and its term in metric number `out`. In the last segment. */                \
  X(loss, 1) X(grad, 2) X(metric, 1)                                                                   \
  /* Add a number, times how often the row counts, to the loss and to metric number `out`. In row segments */ \
  /* after the outputs. */                                                                             \
  X(row_loss, 1) X(row_metric, 1)                                                                      \
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
  return op >= Op::k_row_sum && op <= Op::k_row_arg_max;
}
PL_FN constexpr bool is_rows_reduction(Op op) {
  return op >= Op::k_rows_sum && op <= Op::k_rows_arg_max;
}
PL_FN constexpr bool is_output(Op op) {
  return op >= Op::k_loss && op <= Op::k_metric;
}
PL_FN constexpr bool is_row_output(Op op) {
  return op == Op::k_row_loss || op == Op::k_row_metric;
}

// Describe a reduction over a row or over rows: a sum, a position, or an extreme that is the largest.
PL_FN constexpr bool is_sum(Op op) {
  return op == Op::k_row_sum || op == Op::k_rows_sum;
}
PL_FN constexpr bool is_position(Op op) {
  return op == Op::k_row_arg_min || op == Op::k_row_arg_max || op == Op::k_rows_arg_min ||
         op == Op::k_rows_arg_max;
}
PL_FN constexpr bool is_largest(Op op) {
  return op == Op::k_row_max || op == Op::k_row_arg_max || op == Op::k_rows_max || op == Op::k_rows_arg_max;
}

// The kinds of operands. The indices of the last three are those of RowInput, BatchInput and RowColumn.
enum class Kind : uint8_t {
  kRegister,
  kColumn,
  kConstant,
  kRowValue,
  kBatchValue,
  kRowInput,
  kBatchInput,
  kRowColumn
};
constexpr int kKinds = 8;

// The numbers of a row that a program gets: how many unmasked tokens it has, the weight of its tokens in the
// loss, and how often it counts. The weight includes how often the row counts.
enum RowInput { kRowTokens, kRowWeight, kRowRepeats };
constexpr int kRowInputs = 3;

// The numbers of the whole batch that a program gets: unmasked tokens, rows, and the row length T. Tokens and
// rows count as often as their rows do. If the batch is a part, they are those of the whole.
enum BatchInput { kBatchTokens, kBatchRows, kRowLength };
constexpr int kBatchInputs = 3;

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
constexpr int kMaxValues = 256;     // of each kind: constants, row values, batch values
constexpr int kMaxReductions = 16;  // in one segment
constexpr int kMaxColumns = 9;      // that a program reads, of the kColumns columns
constexpr int kMaxBatchMetrics = 32;
constexpr int kMaxBatchSegments = 61;

// A segment without the instruction that begins it.
struct Segment {
  Op kind;          // k_tokens, k_row or k_batch
  int first, last;  // instructions [first, last)
  int reductions;   // how many reductions over a row it has
  int compiled;     // the index of the compiled segment (see compiled.h) that it begins, or -1
  int first_uniform, last_uniform;  // the operands uniforms[first, last) are the numbers that this one reads
};

// A view of a program as plain arrays, which can be copied to every device.
struct ProgramView {
  const Instruction* instructions = nullptr;
  const Segment* segments = nullptr;
  const double* constants = nullptr;
  const Operand* uniforms = nullptr;
  int instruction_count = 0, segment_count = 0, constant_count = 0;
  int registers = 0, row_values = 0, batch_values = 0;
  int metrics = 0, batch_metrics = 0;  // `metrics` are those of tokens and rows
  int output_segment = 0;              // the segment with the outputs
  int interpreted = 0;                 // the instructions of token segments for which no loop is compiled
  bool has_grad = false;               // whether it outputs gradients
  bool all_rows = false;               // whether rows without unmasked tokens take part
  unsigned columns = 0;                // the columns that it reads, including logprob
  unsigned row_columns = 0;            // the row columns that it reads
};

}  // namespace policy_loss::program

// The values of a program (see program/program.h) that are not of tokens, and its row and batch segments,
// which compute them.
#pragma once

#include "cpu/digits.h"
#include "cpu/target.h"
#include "cpu/tile_reader.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

using program::Instruction;
using program::Kind;
using program::Operand;
using program::ProgramView;
using program::Segment;

// The numbers for row segments and batch segments: everything but registers and columns.
struct ProgramValues {
  explicit ProgramValues(const cpu::TokenPass& pass)
      : program(*pass.program.program), pass(pass), batch(pass.program.batch_values) {
    const Counts counts = pass.counts.all();
    batch_input[program::kBatchTokens] = counts.tokens;
    batch_input[program::kBatchRows] = counts.rows;
    batch_input[program::kRowLength] = counts.row_length;
    numbers(Kind::kConstant) = program.constants;
    numbers(Kind::kBatchValue) = batch;
    numbers(Kind::kRowInput) = row_input;
    numbers(Kind::kBatchInput) = batch_input;
    numbers(Kind::kRowColumn) = row_column;
    numbers(Kind::kColumn) = column;
  }
  ProgramValues(const ProgramValues&) = delete;
  ProgramValues& operator=(const ProgramValues&) = delete;

  const ProgramView& program;
  const cpu::TokenPass& pass;
  double* row = nullptr;  // row values, then the operands of reductions over rows
  double* const batch;
  double row_input[program::kRowInputs] = {};
  double batch_input[program::kBatchInputs];
  // The row's numbers in row columns, and in columns that have one number per row.
  double row_column[kRowColumns] = {};
  double column[kColumns] = {};
  int64_t row_index = 0;
  RowRank row_rank[program::kMaxGathered];  // of the row's gathered values
  int64_t gathered_begin = 0;               // where the row's values begin in the memory for gathered values
  // The outputs of the row.
  double loss = 0;
  double metric[kMaxMetrics] = {};

  // Begins a row, whose row values are in `values`.
  void start_row(int64_t index, double* values) {
    row_index = index;
    row = values;
    numbers(Kind::kRowValue) = values;
    loss = 0;
    for (int k = 0; k < program.metrics; ++k) metric[k] = 0;
    gathered_begin = program.has_batch_segment ? pass.batch->layout.begin(index) : 0;
    for (int k = 0; k < program.gathered; ++k) row_rank[k].clear();
    for (unsigned left = program.row_columns; left != 0; left &= left - 1) {
      const int c = __builtin_ctz(left);
      row_column[c] = pass.batch->row_column[c][index];
    }
    for (unsigned left = program.columns; left != 0; left &= left - 1) {
      const int c = __builtin_ctz(left);
      const ColumnView& view = pass.batch->column[c];
      if (view.per_row) column[c] = element(view, index);
    }
  }

  // Returns an operand of a row segment or a batch segment.
  double get(const Operand& x) const { return numbers_[static_cast<int>(x.kind)][x.index]; }

  // Returns where the values with a number that the row's tokens keep are. They have no gaps for masked
  // tokens.
  float* gathered_values(int gathered) const {
    return pass.program.gathered + gathered * pass.program.gathered_stride + gathered_begin;
  }

  double* output(const Instruction& x) {
    if (x.op == Op::k_batch_metric) return &pass.program.batch_metrics[x.out];
    return x.op == Op::k_row_loss ? &loss : &metric[x.out];
  }

  // Runs a row segment or a batch segment.
  void run(const Segment& segment) {
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction& x = program.instructions[i];
      double operand[program::kMaxOperands] = {};
      for (int k = 0; k < program::kMaxOperands && k < x.operands; ++k) operand[k] = get(x.operand[k]);
      const auto [a, b, c, d] = operand;
      if (program::is_rows_reduction(x.op)) {
        row[program.row_values + x.out] = program::is_rows_selection(x.op) ? b : a;
        continue;
      }
      if (program::is_group_reduction(x.op)) {
        row[x.out] = a;
        continue;
      }
      if (x.op == Op::k_grad_log_z) {
        if (pass.grad_log_z) pass.grad_log_z[row_index] = static_cast<float>(a);
        continue;
      }
      if (program::is_row_output(x.op) || x.op == Op::k_batch_metric) {
        *output(x) += a;
        continue;
      }
      double* const out = (segment.kind == Op::k_batch ? batch : row) + x.out;
      if (x.op == Op::k_row_rank)
        *out = row_rank[x.operand[0].index].select(gathered_values(x.operand[0].index),
                                                   pass.row_tokens[row_index], b);
      else if (x.op == Op::k_is_row)
        *out = a == static_cast<double>(row_index) ? 1.0 : 0.0;
      else
        dispatch(x.op, [&]<Op op>() {
          if constexpr (program::is_arithmetic(op)) *out = apply<op, double>(a, b, c, d);
        });
    }
  }

 private:
  const double*& numbers(Kind kind) { return numbers_[static_cast<int>(kind)]; }

  const double* numbers_[program::kKinds] = {};  // the operands of each kind
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

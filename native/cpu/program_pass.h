// The passes of user-defined losses that reduce over all rows. Each pass computes row values, and ends with
// batch values. The token pass comes last, and computes the losses and gradients of the tokens.
#pragma once

#include "cpu/program_rows.h"
#include "engine/row_weights.h"
#include "program/groups.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

inline void program_pass(const cpu::TokenPass& pass, const cpu::Chunk& chunk) {
  const BatchView& batch = *pass.batch;
  ProgramRows program(pass);
  TileReader reader(batch, pass.program.program->columns, true);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    if (!takes_part(pass, row)) continue;
    const WeightedRow weighted{batch.kind(row), static_cast<double>(batch.repeats_of(row)),
                               static_cast<double>(pass.row_tokens[row])};
    RowWeights weights;
    weigh_loss(*pass.terms, false, pass.counts, pass.scales, weighted, &weights);
    reader.start_row(row, solid_tokens(pass, row));
    program.start_row(row, weighted.tokens, weights.loss_grad, weighted.repeats);
    program.run_pass(reader, batch.layout.length(row));
  }
}

// A reduction over rows, of which some rows were added.
struct RowsReduction {
  Op op;
  int out;                 // the batch value
  const double* operands;  // operands[row * stride] is that of a row
  LaneSum<double> sum{};
  double best = 0;     // the smallest or largest operand
  int64_t found = -1;  // the row that has it; -1 if there is none

  PL_FN void add(const cpu::TokenPass& pass, int64_t first, int64_t last, int64_t stride) {
    const bool is_sum = program::is_sum(op), largest = program::is_largest(op);
    for (int64_t row = first; row < last; ++row) {
      if (!takes_part(pass, row)) continue;
      const double x = operands[row * stride];
      if (is_sum) {
        sum.lane[row % kSumLanes] += x;
      } else if (found < 0 || (best == best && ((largest ? x > best : x < best) || x != x))) {
        found = row;
        best = x;
      }
    }
  }

  PL_FN double result() {
    if (program::is_sum(op)) return sum.take();
    return program::is_position(op) ? static_cast<double>(found) : best;
  }
};

// The rows that are added to one reduction after the other, so that their values stay in the cache.
constexpr int64_t kReducedRows = 256;
// The reductions that are computed together.
constexpr int kReductions = 16;

// Writes the results of some reductions over all rows, unless the task is aborted.
inline void reduce_rows(const cpu::TokenPass& pass, RowsReduction* reductions, int count, int64_t stride) {
  const int64_t rows = pass.batch->layout.rows;
  for (int64_t first = 0; first < rows; first += kReducedRows) {
    if (cpu::is_aborted(*pass.task)) return;
    const int64_t last = first + kReducedRows < rows ? first + kReducedRows : rows;
    for (int i = 0; i < count; ++i) reductions[i].add(pass, first, last, stride);
  }
  for (int i = 0; i < count; ++i) pass.program.batch_values[reductions[i].out] = reductions[i].result();
}

// Computes a reduction over groups. values[row * stride] holds the operand of a row, and receives the result.
inline void reduce_groups(const cpu::TokenPass& pass, Op op, double* values, int64_t stride) {
  if (cpu::is_aborted(*pass.task)) return;
  const double* const next = pass.batch->row_column[op == Op::k_pair_sum ? kNextInPair : kNextInGroup];
  const RowGroups groups{next, pass.batch->layout.rows};
  for (int64_t row = 0; row < groups.rows; ++row)
    if (groups.is_last(row))
      reduce_group(
          op, groups, row, [&](int64_t r) { return takes_part(pass, r); },
          [&](int64_t r) { return values[r * stride]; },
          [&](int64_t r, double result) { values[r * stride] = result; });
}

// Computes an operation that compares all rows. Its operands are row values, which it does not change.
inline void compare_rows(const cpu::TokenPass& pass, const Instruction& x, int64_t stride) {
  const int64_t rows = pass.batch->layout.rows;
  const auto takes = [&](int64_t r) { return takes_part(pass, r); };
  const auto operand = [&](int k) {
    const double* const values = pass.program.row_values + x.operand[k].index;
    return [=](int64_t r) { return values[r * stride]; };
  };
  for (int64_t row = 0; row < rows && !cpu::is_aborted(*pass.task); ++row)
    pass.program.row_values[row * stride + x.out] =
        x.op == Op::k_rank_of_row ? rank_of_row(row, rows, takes, operand(0))
                                  : at_rank(operand(1)(row), rows, takes, operand(0), operand(2));
}

inline void program_batch(const cpu::TokenPass& pass) {
  const cpu::ProgramPass& at = pass.program;
  const ProgramView& program = *at.program;
  const int64_t stride = cpu::row_stride(program);
  RowsReduction reductions[kReductions];
  int count = 0;
  for (int s = at.first_segment; s < at.last_segment; ++s) {
    const Segment& segment = program.segments[s];
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction& x = program.instructions[i];
      if (program::compares_rows(x.op))
        compare_rows(pass, x, stride);
      else if (program::is_group_reduction(x.op))
        reduce_groups(pass, x.op, at.row_values + x.out, stride);
      if (!program::is_rows_reduction(x.op)) continue;
      if (program::is_rows_selection(x.op)) continue;  // see cpu/select.h
      reductions[count++] = {x.op, x.out, at.row_values + program.row_values + x.out};
      if (count < kReductions) continue;
      reduce_rows(pass, reductions, count, stride);
      count = 0;
    }
  }
  if (count > 0) reduce_rows(pass, reductions, count, stride);
  if (!cpu::is_aborted(*pass.task)) ProgramValues(pass).run(program.segments[at.last_segment]);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

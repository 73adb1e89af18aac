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

// Returns the smallest or largest of the numbers operands[row * stride], or the row that has it.
inline double extreme_over_rows(const cpu::TokenPass& pass, Op op, const double* operands, int64_t stride) {
  const bool largest = program::is_largest(op);
  int64_t found = -1;
  double best = 0;
  for (int64_t row = 0; row < pass.batch->layout.rows; ++row) {
    if (!takes_part(pass, row)) continue;
    const double x = operands[row * stride];
    if (found >= 0 && (best != best || !((largest ? x > best : x < best) || x != x))) continue;
    found = row;
    best = x;
  }
  return program::is_position(op) ? static_cast<double>(found) : best;
}

inline double sum_over_rows(const cpu::TokenPass& pass, const double* operands, int64_t stride) {
  LaneSum<double> sum;
  for (int64_t row = 0; row < pass.batch->layout.rows; ++row)
    if (takes_part(pass, row)) sum.lane[row % kSumLanes] += operands[row * stride];
  return sum.take();
}

// Computes a reduction over groups. values[row * stride] holds the operand of a row, and receives the result.
inline void reduce_groups(const cpu::TokenPass& pass, Op op, double* values, int64_t stride) {
  const double* const next = pass.batch->row_column[kNextInGroup];
  const RowGroups groups{op == Op::k_pair_sum ? nullptr : next, pass.batch->layout.rows};
  for (int64_t row = 0; row < groups.rows; ++row)
    if (groups.is_last(row))
      reduce_group(
          op, groups, row, [&](int64_t r) { return takes_part(pass, r); },
          [&](int64_t r) { return values[r * stride]; },
          [&](int64_t r, double result) { values[r * stride] = result; });
}

inline void program_batch(const cpu::TokenPass& pass) {
  const cpu::ProgramPass& at = pass.program;
  const ProgramView& program = *at.program;
  const int64_t stride = cpu::row_stride(program);
  for (int s = at.first_segment; s < at.last_segment; ++s) {
    const Segment& segment = program.segments[s];
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction& x = program.instructions[i];
      if (program::is_group_reduction(x.op)) reduce_groups(pass, x.op, at.row_values + x.out, stride);
      if (!program::is_rows_reduction(x.op)) continue;
      if (program::is_rows_selection(x.op)) continue;  // see cpu/select.h
      const double* const operands = at.row_values + program.row_values + x.out;
      at.batch_values[x.out] = program::is_sum(x.op) ? sum_over_rows(pass, operands, stride)
                                                     : extreme_over_rows(pass, x.op, operands, stride);
    }
  }
  ProgramValues(pass).run(program.segments[at.last_segment]);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Computes the instructions of a program (program/program.h) that are not for tokens: those of row segments
// and batch segments. Also holds what token segments share with them.
#pragma once

#include "cuda/program.h"
#include "cuda/warp.cuh"
#include "program/groups.h"
#include "program/interpret.h"

namespace policy_loss::cuda {

using program::Instruction;
using program::Kind;
using program::Op;
using program::Operand;
using program::Segment;

__device__ __forceinline__ const RowState<NoRow>& state_of_row(const Pass& pass, int64_t row) {
  return static_cast<const RowState<NoRow>*>(pass.states)[row];
}

__device__ __forceinline__ Instruction load_instruction(const program::ProgramView& program, int at) {
  static_assert(sizeof(Instruction) == sizeof(uint4));
  const uint4 bits = reinterpret_cast<const uint4*>(program.instructions)[at];
  Instruction instruction;
  memcpy(&instruction, &bits, sizeof bits);
  return instruction;
}

// Returns a segment with the index of the compiled segment to which it belongs.
__device__ __forceinline__ Segment load_segment(const program::ProgramView& program, int at) {
  Segment segment = program.segments[at];
  if (!program::joins_outputs(segment, at, program.output_segment)) return segment;
  const Segment& outputs = program.segments[program.output_segment];
  segment.compiled = outputs.compiled;
  segment.first_uniform = outputs.first_uniform;
  segment.last_uniform = outputs.last_uniform;
  return segment;
}

// Returns whether a row takes part in the computation of rows and in reductions over rows.
__device__ __forceinline__ bool takes_part(const ProgramPass& pass, const RowState<NoRow>& state) {
  return state.repeats > 0 && (state.tokens > 0 || pass.program.all_rows);
}
__device__ __forceinline__ bool takes_part(const ProgramPass& pass, int64_t row) {
  return takes_part(pass, state_of_row(pass, row));
}

// The operands that are the same for all tokens of a row.
struct RowOperands {
  const ProgramPass& pass;
  int64_t row;

  __device__ __forceinline__ double operator()(const Operand& x) const {
    switch (x.kind) {
      case Kind::kConstant:
        return pass.program.constants[x.index];
      case Kind::kRowValue:
        return pass.row_values[x.index * pass.batch.layout.rows + row];
      case Kind::kBatchValue:
        return pass.batch_values[x.index];
      case Kind::kRowInput:
        return row_input(x.index);
      case Kind::kBatchInput:
        return batch_input(x.index);
      case Kind::kRowColumn:
        return pass.batch.row_column[x.index][row];
      case Kind::kColumn:
        return of_row(pass.batch.column[x.index]);
      default:
        return 0.0;
    }
  }

 private:
  // Returns the row's number in a column that has one value per row.
  __device__ __forceinline__ double of_row(const ColumnView& column) const {
    return column.per_row ? load_one(column, row) : 0.0;
  }

  __device__ __forceinline__ double row_input(int index) const {
    const RowState<NoRow>& state = state_of_row(pass, row);
    return index == program::kRowTokens     ? state.tokens
           : index == program::kRowWeight   ? state.loss_weight
           : index == program::kRowRepeats  ? static_cast<double>(state.repeats)
           : index == program::kPlaceInPair ? place_in_pair(pass.batch.row_column[kNextInPair], row)
                                            : static_cast<double>(row);
  }

  __device__ __forceinline__ double batch_input(int index) const {
    const BatchCounts counts = pass.normalizer.given ? pass.normalizer.counts : pass.result->counts;
    const Counts all = counts.all();
    return index == program::kBatchTokens ? all.tokens
           : index == program::kBatchRows ? all.rows
                                          : all.row_length;
  }
};

// Computes an arithmetic operation with N numbers per operand.
template <class Number, int N>
struct Arithmetic {
  const Number (&a)[N];
  const Number (&b)[N];
  const Number (&c)[N];
  const Number (&d)[N];
  Number (&out)[N];

  template <Op op>
  PL_FN void operator()() const {
    if constexpr (program::is_arithmetic(op))
      for (int j = 0; j < N; ++j) out[j] = apply<op, Number>(a[j], b[j], c[j], d[j]);
  }
};

// Computes an instruction of a row segment or of a batch segment that is not a reduction.
__device__ __forceinline__ double compute_one(const Instruction& x, const RowOperands& operand) {
  const double a[] = {operand(x.operand[0])};
  if (x.op == Op::k_is_row) return a[0] == static_cast<double>(operand.row) ? 1.0 : 0.0;
  const double b[] = {x.operands > 1 ? operand(x.operand[1]) : 0.0};
  const double c[] = {x.operands > 2 ? operand(x.operand[2]) : 0.0};
  const double d[] = {x.operands > 3 ? operand(x.operand[3]) : 0.0};
  double out[1] = {};
  dispatch(x.op, Arithmetic<double, 1>{a, b, c, d, out});
  return out[0];
}

// The smallest or largest of several numbers, and the first position that has it. NaN replaces any number.
template <class Number>
struct Extreme {
  Number value = 0;
  int position = -1;  // −1 before the first number

  __device__ __forceinline__ void add(bool largest, Number x, int at) {
    if (at >= 0 && (position < 0 || is_before(largest, x, at))) *this = {x, at};
  }

  // Returns the result of all lanes of a warp. Only lane 0 gets it.
  __device__ __forceinline__ Extreme of_warp(bool largest) const {
    Extreme all = *this;
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const Number other = __shfl_down_sync(kAllLanes, all.value, distance);
      const int at = __shfl_down_sync(kAllLanes, all.position, distance);
      all.add(largest, other, at);
    }
    return all;
  }

 private:
  __device__ __forceinline__ bool is_before(bool largest, Number x, int at) const {
    if (x != x || value != value) return x != x && (value == value || at < position);
    if (x == value) return at < position;
    return largest ? x > value : x < value;
  }
};

// Returns whether an instruction of a row segment is computed for all rows together.
PL_FN bool is_over_rows(Op op) {
  return program::is_rows_reduction(op) || program::is_group_reduction(op) || program::is_row_output(op);
}
// Returns whether an instruction of a token segment is computed for all tokens of a row together.
PL_FN bool is_over_tokens(Op op) {
  return program::is_row_reduction(op) || program::is_scan(op);
}
// Returns the scanned values of a row's tokens.
__device__ __forceinline__ float* scanned_of_row(const ProgramPass& pass, int index, int64_t row) {
  return pass.scanned + index * pass.tokens + pass.batch.layout.begin(row);
}
// Returns the values that a row's tokens keep for selections.
__device__ __forceinline__ float* gathered_of_row(const ProgramPass& pass, int index, int64_t row) {
  return pass.gathered + index * pass.tokens + pass.batch.layout.begin(row);
}
template <class Number>
__device__ __forceinline__ double result_of(Op op, const Extreme<Number>& extreme) {
  return program::is_position(op) ? static_cast<double>(extreme.position)
                                  : static_cast<double>(extreme.value);
}

}  // namespace policy_loss::cuda

// The reductions of a token segment over the row that is being computed.
#pragma once

#include "cpu/compiled_loops.h"
#include "cpu/program_loops.h"
#include "cpu/program_values.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

class RowReductions {
 public:
  // Begins the reductions of a segment for a row.
  void begin(const ProgramView& program, const Segment& segment) {
    count_ = 0;
    for (int i = segment.first; i < segment.last && count_ < segment.reductions; ++i)
      if (program::is_row_reduction(program.instructions[i].op))
        all_[count_++] = {.instruction = &program.instructions[i]};
  }

  int count() const { return count_; }
  const Instruction& instruction(int k) const { return *all_[k].instruction; }
  RowSum* lanes(int k) { return &all_[k].lanes; }

  // Adds the operand's values at the unmasked ones of n tokens, considers them for an extreme, or keeps them.
  void add(int k, const TokenOperand& operand, const Lane* lanes, int n, int64_t position,
           const ProgramValues& values) {
    Reduction& r = all_[k];
    const Instruction& x = *r.instruction;
    if (x.op == Op::k_row_sum) return add_to_row_sum(operand, lanes, n, &r.lanes.precise);
    if (x.op == Op::k_row_sum_single) return add_to_token_sum(operand, lanes, n, &r.lanes.single);
    if (x.op == Op::k_row_gather) {
      r.gathered += gather(operand, lanes, n, values.gathered_values(x.out) + r.gathered);
      return;
    }
    const bool wants_position = program::is_position(x.op);
    if (program::is_largest(x.op))
      r.extreme.add<true>(operand, lanes, n, position, wants_position);
    else
      r.extreme.add<false>(operand, lanes, n, position, wants_position);
  }

  // Ends the sums over kSumTokens tokens.
  void end_sums() {
    for (int k = 0; k < count_; ++k) {
      Reduction& r = all_[k];
      if (r.instruction->op == Op::k_row_sum) r.sum += r.lanes.precise.take();
      if (r.instruction->op == Op::k_row_sum_single) r.sum += static_cast<double>(r.lanes.single.take());
    }
  }

  // Writes the results to the row's values.
  void write_results(ProgramValues* values) const {
    for (int k = 0; k < count_; ++k) values->row[all_[k].instruction->out] = result(all_[k], *values);
  }

 private:
  struct Reduction {
    const Instruction* instruction = nullptr;
    RowSum lanes{};
    double sum = 0;
    Extreme extreme{};
    int64_t gathered = 0;  // how many values have been gathered
  };

  static double result(const Reduction& r, const ProgramValues& values) {
    const Op op = r.instruction->op;
    if (program::is_sum(op)) return r.sum;
    if (op == Op::k_row_gather) return values.row_input[program::kRowTokens];
    return program::is_position(op) ? static_cast<double>(r.extreme.position) : r.extreme.value;
  }

  int count_ = 0;
  Reduction all_[program::kMaxReductions];
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

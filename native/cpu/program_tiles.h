// Runs the token segments of a program (see program/program.h) for one tile of a row: in the loop of a
// compiled segment, or one instruction after another, with registers of one number per token.
#pragma once

#include "cpu/read_ahead.h"
#include "cpu/row_reductions.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

class ProgramTiles {
 public:
  ProgramTiles(const cpu::TokenPass& pass, const ProgramValues& values)
      : program_(*pass.program.program),
        pass_(pass.program),
        values_(values),
        size_(program_.registers <= kFewRegisters ? kSharedTile : kSharedTile / 2) {
    static_assert(program::kMaxRegisters == 2 * kFewRegisters && kSharedTile / 2 % kGranule == 0);
    static_assert(cpu::kScannedPadding >= kGranule);
  }

  // The most tokens of a tile.
  int size() const { return size_; }

  // Begins a row whose values have been set.
  void start_row() {
    loop_.segment = nullptr;
    scanned_ = pass_.scanned;
    if (scanned_ && program_.has_several_passes)
      scanned_ += cpu::scanned_begin(values_.pass.batch->layout, values_.row_index);
  }

  // Returns the scanned values of the row's tokens.
  float* scanned_of(int index) const { return scanned_ + index * pass_.scanned_stride; }

  // Runs the segment with the outputs for n tokens from a position on, and the reductions of the token
  // segment after it if `reductions` has any. Writes the gradient with respect to logprob to `grad`, and adds
  // the one with respect to entropy to `grad_entropy`, each if it is not null.
  void output(const TileColumns& in, int n, int64_t position, float* grad, float* grad_entropy,
              LossSums* sums, RowReductions* reductions) {
    position_ = position;
    const Segment* const segment = &program_.segments[program_.output_segment];
    const bool reduces = reductions->count() > 0;
    if (has_loop(*segment)) {
      prepare_loop(*segment, (reduces ? segment[1] : *segment).last, reductions);
      return run_loop(in, n, grad ? grad : unwanted_grad_, sums, reductions);
    }
    interpret_outputs(*segment, in, n, grad, grad_entropy, sums);
    if (reduces) interpret(segment[1], in, n, reductions);
  }

  // Runs a segment without outputs for n tokens from a position on.
  void reduce(const Segment& segment, const TileColumns& in, int n, int64_t position,
              RowReductions* reductions) {
    position_ = position;
    if (!has_loop(segment)) return interpret(segment, in, n, reductions);
    prepare_loop(segment, segment.last, reductions);
    run_loop(in, n, nullptr, nullptr, reductions);
  }

 private:
  // With this many registers that are used, a tile has kSharedTile tokens, otherwise half as many.
  static constexpr int kFewRegisters = program::kMaxRegisters / 2;
  // What lies between two registers, for the reason that TileReader gives for its buffers.
  static constexpr int kPadding = 48;
  // How many registers of kSharedTile tokens there is room for: the loop of a compiled segment needs one for
  // each reduction, and one for each result that depends on positions.
  static constexpr int kTileRegisters = program::kMaxReductions + 2;
  static_assert(kTileRegisters * (kSharedTile + kPadding) >=
                program::kMaxRegisters * (kSharedTile / 2 + kPadding));

  float* register_of(int index) { return registers_ + index * (size_ + kPadding); }

  TokenOperand token_operand(const Operand& x, const TileColumns& in) {
    if (x.kind == Kind::kRegister) return {register_of(x.index)};
    if (x.kind == Kind::kColumn) return {in.get<const float*>(x.index)};
    if (x.kind == Kind::kScanned) return {scanned_of(x.index) + position_};
    return {nullptr, static_cast<float>(values_.get(x))};
  }

  // Computes an instruction whose result depends on the positions of the tokens.
  void compute_of_position(const Instruction& x, int n, float* out) const {
    const double operand = values_.get(x.operand[0]);
    if (x.op == Op::k_draw) return write_draws({operand, values_.row_index}, position_, n, out);
    const auto first = static_cast<double>(position_);
    if (x.op == Op::k_is_at) return write_is_at(operand - first, n, out);
    // The operand is a place in the batch, which may be in another row.
    const double row_begin = static_cast<double>(values_.row_index) * program::kPlacesPerRow;
    write_is_up_to(operand - row_begin - first, n, out);
  }

  // Computes an instruction that writes a register.
  void compute(const Instruction& x, const TileColumns& in, int n) {
    if (program::is_of_position(x.op)) return compute_of_position(x, n, register_of(x.out));
    TokenOperand operands[program::kMaxOperands];
    unsigned uniform = 0;
    for (int i = 0; i < program::kMaxOperands && i < x.operands; ++i) {
      operands[i] = token_operand(x.operand[i], in);
      uniform |= operands[i].is_uniform() ? 1u << i : 0u;
    }
    arithmetic_loop(x.op, uniform)(operands, n, register_of(x.out));
  }

  void interpret_outputs(const Segment& segment, const TileColumns& in, int n, float* grad,
                         float* grad_entropy, LossSums* sums) {
    ReadAhead ahead(program_, in, n, segment.last - segment.first, grad);
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction& x = program_.instructions[i];
      ahead.advance();
      if (x.op == Op::k_loss)
        add_to_token_sum(token_operand(x.operand[0], in), in.lanes, n, &sums->loss);
      else if (x.op == Op::k_metric)
        add_to_token_sum(token_operand(x.operand[0], in), in.lanes, n, &sums->metric[x.out]);
      else if (program::is_output(x.op))
        output_grad(x, in, n, x.op == Op::k_grad ? grad : grad_entropy);
      else
        compute(x, in, n);
    }
  }

  void output_grad(const Instruction& x, const TileColumns& in, int n, float* to) {
    if (!to) return;
    const TokenOperand value = token_operand(x.operand[0], in);
    const float factor = token_operand(x.operand[1], in).value;
    if (x.op == Op::k_grad)
      write_unmasked(value, factor, in.lanes, n, to);
    else
      add_unmasked(value, factor, in.lanes, n, to);
  }

  void interpret(const Segment& segment, const TileColumns& in, int n, RowReductions* reductions) {
    ReadAhead ahead(program_, in, n, segment.last - segment.first, nullptr);
    int reduction = 0;
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction& x = program_.instructions[i];
      ahead.advance();
      if (program::is_row_reduction(x.op))
        reductions->add(reduction++, token_operand(x.operand[0], in), in.lanes, n, position_, values_);
      else if (program::is_scan(x.op))
        write_unmasked(token_operand(x.operand[0], in), 1.0f, in.lanes, n, scanned_of(x.out) + position_);
      else
        compute(x, in, n);
    }
  }

  // What the loop of a compiled segment gets for every tile of a row. The operands of extremes and of
  // row_gather, and the results that depend on positions, go to registers.
  struct RowLoop {
    const Segment* segment = nullptr;  // the first segment of the compiled one; null if nothing is prepared
    float uniforms[4 * program::kMaxValues];
    RowSum* sums[program::kMaxReductions];
    float* operands[program::kMaxReductions];
    const Instruction* of_position[kTileRegisters];
    float* result[kTileRegisters];
    int positions;
  };

  // Returns whether two instructions whose results depend on positions have the same results in a row.
  static bool is_same_result(const Instruction& x, const Instruction& y) {
    return x.op == y.op && x.operand[0].kind == y.operand[0].kind && x.operand[0].index == y.operand[0].index;
  }

  // Prepares the loop of the compiled segment that begins with `segment`, unless that has been done for the
  // row. Its last instruction is before `last`.
  void prepare_loop(const Segment& segment, int last, RowReductions* reductions) {
    if (loop_.segment == &segment) return;
    loop_.segment = &segment;
    for (int k = segment.first_uniform; k < segment.last_uniform; ++k)
      loop_.uniforms[k - segment.first_uniform] = static_cast<float>(values_.get(program_.uniforms[k]));
    for (int k = 0; k < reductions->count(); ++k) {
      loop_.sums[k] = reductions->lanes(k);
      loop_.operands[k] = register_of(k);
    }
    loop_.positions = 0;
    for (int i = segment.first; i < last; ++i) {
      const Instruction& x = program_.instructions[i];
      if (!program::is_of_position(x.op)) continue;
      int k = 0;
      while (k < loop_.positions && !is_same_result(*loop_.of_position[k], x)) ++k;
      loop_.result[loop_.positions] =
          k < loop_.positions ? loop_.result[k] : register_of(kTileRegisters - 1 - k);
      loop_.of_position[loop_.positions++] = &x;
    }
  }

  // Runs the prepared loop for a tile, and adds what it has written for extremes and row_gather.
  void run_loop(const TileColumns& in, int n, float* grad, LossSums* outputs, RowReductions* reductions) {
    for (int k = 0; k < loop_.positions; ++k)
      if (k == 0 || loop_.result[k] != loop_.result[k - 1])
        compute_of_position(*loop_.of_position[k], n, loop_.result[k]);
    float* scanned[program::kMaxScanned];
    for (int k = 0; k < program_.scanned; ++k) scanned[k] = scanned_of(k) + position_;
    compiled_loop(loop_.segment->compiled)(
        {loop_.uniforms, grad, outputs, loop_.sums, loop_.operands, loop_.result, scanned}, in, n);
    for (int k = 0; k < reductions->count(); ++k)
      if (!program::is_sum(reductions->instruction(k).op))
        reductions->add(k, {loop_.operands[k]}, in.lanes, n, position_, values_);
  }

  const ProgramView& program_;
  const cpu::ProgramPass& pass_;
  const ProgramValues& values_;
  const int size_;
  int64_t position_ = 0;      // of the tile's first token in the row
  float* scanned_ = nullptr;  // the first scanned values of the row
  RowLoop loop_;
  alignas(64) float registers_[kTileRegisters * (kSharedTile + kPadding)];
  alignas(64) float unwanted_grad_[kSharedTile];  // a loop that computes a gradient always writes it
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

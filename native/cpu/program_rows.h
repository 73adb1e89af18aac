// Interprets a user-defined loss (see program/program.h) on the CPU: the token segments tile by tile, the row
// segments row by row.
#pragma once

#include "cpu/compiled_loops.h"
#include "cpu/digits.h"
#include "cpu/loops.h"
#include "cpu/program_loops.h"
#include "cpu/read_ahead.h"
#include "cpu/scans.h"
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
  RowRank row_rank[program::kMaxKept];  // of the row's kept values
  int64_t kept_begin = 0;               // where the row's values begin in the memory for kept values
  // The outputs of the row.
  double loss = 0;
  double metric[kMaxMetrics] = {};

  void start_row(int64_t index, double* values) {
    row_index = index;
    row = values;
    numbers(Kind::kRowValue) = values;
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
  float* kept_values(int kept) const {
    return pass.program.kept + kept * pass.program.kept_stride + kept_begin;
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
        *out = row_rank[x.operand[0].index].select(kept_values(x.operand[0].index),
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

// Computes the tokens of one row after another.
class ProgramRows {
 public:
  explicit ProgramRows(const cpu::TokenPass& pass)
      : program_(*pass.program.program),
        pass_(pass.program),
        layout_(pass.batch->layout),
        values_(pass),
        reducing_(reductions_with_outputs(program_)),
        has_output_loop_(has_loop(program_.segments[program_.output_segment])),
        tile_size_(program_.registers <= kFewRegisters ? kSharedTile : kSharedTile / 2) {
    static_assert(program::kMaxRegisters == 2 * kFewRegisters && kSharedTile / 2 % kBlock == 0);
    static_assert(cpu::kScannedPadding >= kBlock);
  }

  // The most tokens of a tile.
  int tile_size() const { return tile_size_; }
  int metrics() const { return program_.metrics; }

  // Begins a row of `tokens` unmasked tokens.
  void start_row(int64_t row, double tokens, double weight, double repeats) {
    values_.start_row(row, pass_.row_values ? pass_.row_values + row * cpu::row_stride(program_) : own_row_);
    values_.row_input[program::kRowTokens] = tokens;
    values_.row_input[program::kRowWeight] = weight;
    values_.row_input[program::kRowRepeats] = repeats;
    values_.row_input[program::kPlaceInPair] = static_cast<double>(row & 1);
    values_.kept_begin = program_.has_batch_segment ? layout_.begin(row) : 0;
    for (int k = 0; k < program_.kept; ++k) values_.row_rank[k].clear();
    loop_.segment = nullptr;
    scanned_ = pass_.scanned;
    if (scanned_ && program_.has_several_passes) scanned_ += cpu::scanned_begin(layout_, row);
    values_.loss = 0;
    clear(reducing_, reductions_);
    for (int k = 0; k < program_.metrics; ++k) values_.metric[k] = 0;
  }

  // Runs the pass's segments for the row, which end before the segment with the outputs or begin after it.
  void run_pass(TileReader& reader, int64_t length) {
    run_segments(pass_.first_segment, pass_.last_segment, reader, length);
  }

  // Returns the columns that the pass's segments read before the one with the outputs.
  unsigned columns_before_outputs() const {
    return program_.token_columns(pass_.first_segment, pass_.last_segment);
  }

  // Runs the segments after the one with the outputs, and adds what they output to the sums.
  void finish_row(TileReader& reader, int64_t length, ExactSums* sums) {
    int first = program_.output_segment + 1;
    if (reducing_ > 0) write_results(program_.segments[first++], reductions_);
    run_segments(first, program_.segment_count, reader, length);
    const double repeats = values_.row_input[program::kRowRepeats];
    if (values_.loss != 0) sums->add(ExactSums::kLoss, repeats * values_.loss);
    for (int k = 0; k < program_.metrics; ++k)
      if (values_.metric[k] != 0) sums->add(ExactSums::kMetric + k, repeats * values_.metric[k]);
  }

  // Runs the segment with the outputs for a tile, and the token segment that follows it, if there is one
  // without scans, while the tile is in the cache. Writes the gradient with respect to logprob to `grad`, and
  // adds the one with respect to entropy to `grad_entropy`, each if it is not null.
  void output(const TileColumns& in, int n, int64_t position, float* grad, float* grad_entropy,
              LossSums* sums) {
    position_ = position;
    const Segment* const segment = &program_.segments[program_.output_segment];
    if (has_output_loop_) {
      const Segment& last = reducing_ > 0 ? segment[1] : *segment;
      prepare_loop(*segment, last.last, reductions_);
      return run_loop(in, n, grad ? grad : unwanted_grad_, sums, reductions_);
    }
    output_tile(*segment, in, n, grad, grad_entropy, sums);
    if (reducing_ > 0) reduce_tile(segment[1], in, n, reductions_);
  }

  // Ends the sums over kSumTokens tokens.
  void end_sums() { take_sums(reducing_, reductions_); }

  // Multiplies the sums of losses and metrics over the tokens of a row of a kind by the outputs' factors.
  void apply_factors(int kind, Sums* sums) const {
    const Segment& segment = program_.segments[program_.output_segment];
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction& x = program_.instructions[i];
      if (x.op == Op::k_loss) sums->loss[kind] *= values_.get(x.operand[1]);
      if (x.op == Op::k_metric) sums->metric[x.out] *= values_.get(x.operand[1]);
    }
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

  // A reduction over the row that is being computed.
  struct Reduction {
    RowSum lanes;
    double sum;
    Extreme extreme;
    int64_t kept;  // how many values have been kept
  };

  // Returns the number of reductions in the segment after the one with the outputs, or 0 if it has scans.
  static int reductions_with_outputs(const ProgramView& program) {
    const int next = program.output_segment + 1;
    if (next >= program.segment_count || program.segments[next].scans > 0) return 0;
    return program.segments[next].reductions;
  }

  void run_segments(int first, int last, TileReader& reader, int64_t length) {
    for (int s = first; s < last; ++s) {
      const Segment& segment = program_.segments[s];
      if (segment.kind == Op::k_row) values_.run(segment);
      if (segment.kind == Op::k_tokens) reduce_row(segment, reader, length);
    }
  }

  // Returns the position in the row of a place in the batch. It is negative if the place is in an earlier
  // row.
  double position_in_row(double place) const {
    return place - static_cast<double>(values_.row_index) * program::kPlacesPerRow;
  }

  void output_grad(const Instruction& x, const TileColumns& in, int n, float* to) {
    if (!to) return;
    const TokenOperand value = token_operand(x.operand[0], in);
    const float factor = token_operand(x.operand[1], in).value;
    if (x.op == Op::k_grad)
      write_kept(value, factor, in.lanes, n, to);
    else
      add_kept(value, factor, in.lanes, n, to);
  }

  // Returns the scanned values of the row's tokens.
  float* scanned_of(int index) { return scanned_ + index * pass_.scanned_stride; }

  float* register_of(int index) { return registers_ + index * (tile_size_ + kPadding); }

  TokenOperand token_operand(const Operand& x, const TileColumns& in) {
    if (x.kind == Kind::kRegister) return {register_of(x.index)};
    if (x.kind == Kind::kColumn) return {in.get<const float*>(x.index)};
    if (x.kind == Kind::kScanned) return {scanned_of(x.index) + position_};
    return {nullptr, static_cast<float>(values_.get(x))};
  }

  void output_tile(const Segment& segment, const TileColumns& in, int n, float* grad, float* grad_entropy,
                   LossSums* sums) {
    ReadAhead ahead(program_, in, n, segment.last - segment.first, grad);
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction& x = program_.instructions[i];
      ahead.step();
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

  // Computes an instruction whose result depends on the positions of the tokens.
  void compute_of_position(const Instruction& x, int n, float* out) const {
    const double operand = values_.get(x.operand[0]);
    if (x.op == Op::k_draw) return write_draws({operand, values_.row_index}, position_, n, out);
    const auto first = static_cast<double>(position_);
    if (x.op == Op::k_is_up_to) return write_is_up_to(position_in_row(operand) - first, n, out);
    write_is_at(operand - first, n, out);
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

  void reduce_row(const Segment& segment, TileReader& reader, int64_t length) {
    Reduction* const reductions = reductions_of_segment_;
    clear(segment.reductions, reductions);
    loop_.segment = nullptr;
    for (int64_t at = 0; at < length; at += tile_size_) {
      const int n = static_cast<int>(length - at < tile_size_ ? length - at : tile_size_);
      reader.fetch_mask(at + n, n);
      const int unmasked = reader.unmasked_length(at, n);
      reader.tiles(at, unmasked, MaskUse::kLanes,
                   [&](const TileColumns& in, int padded, int64_t position, int) {
                     position_ = position;
                     reduce_tile(segment, in, padded, reductions);
                   });
      for_scans(segment, [&](const Instruction& x) {
        for (int i = unmasked; i < n; ++i) scanned_of(x.out)[at + i] = 0;
      });
      if (ends_sum(at + n, length, kSumTokens)) take_sums(segment.reductions, reductions);
    }
    loop_.segment = nullptr;
    write_results(segment, reductions);
    for_scans(segment, [&](const Instruction& x) {
      const double decay = x.operands > 1 ? values_.get(x.operand[1]) : 0.0;
      scan(x.op, decay, reader.mask(0), reader.solid(), length, scanned_of(x.out));
    });
  }

  // Calls visit(instruction) for the scans of a segment.
  template <class Visit>
  void for_scans(const Segment& segment, Visit visit) {
    if (segment.scans == 0) return;
    for (int i = segment.first; i < segment.last; ++i)
      if (program::is_scan(program_.instructions[i].op)) visit(program_.instructions[i]);
  }

  static void clear(int count, Reduction* reductions) {
    for (int k = 0; k < count; ++k) reductions[k] = {};
  }
  // A reduction has either float64 sums or float32 sums, and the others are 0. If a loop is prepared for the
  // reductions, those that are 0 are left out.
  void take_sums(int count, Reduction* reductions) const {
    for (int k = 0; k < count; ++k) {
      RowSum& lanes = reductions[k].lanes;
      const bool single = !loop_.segment || loop_.reduction[k]->op == Op::k_row_sum_single;
      const bool precise = !loop_.segment || !single;
      reductions[k].sum +=
          (precise ? lanes.precise.take() : 0.0) + (single ? static_cast<double>(lanes.single.take()) : 0.0);
    }
  }
  void write_results(const Segment& segment, Reduction* reductions) {
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction& x = program_.instructions[i];
      if (program::is_row_reduction(x.op)) values_.row[x.out] = result(x.op, *reductions++);
    }
  }

  // What the loop of a compiled segment gets for every tile of a row. The operands of extremes and of
  // row_keep, and the results that depend on positions, go to registers, one per reduction.
  struct RowLoop {
    const Segment* segment = nullptr;  // the first segment of the compiled one; null if nothing is prepared
    float uniforms[4 * program::kMaxValues];
    RowSum* sums[program::kMaxReductions];
    float* operands[program::kMaxReductions];
    const Instruction* reduction[program::kMaxReductions];
    int reductions;
    bool only_sums;  // whether all reductions are sums
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
  void prepare_loop(const Segment& segment, int last, Reduction* reductions) {
    if (loop_.segment == &segment) return;
    loop_.segment = &segment;
    for (int k = segment.first_uniform; k < segment.last_uniform; ++k)
      loop_.uniforms[k - segment.first_uniform] = static_cast<float>(values_.get(program_.uniforms[k]));
    loop_.reductions = loop_.positions = 0;
    loop_.only_sums = true;
    for (int i = segment.first; i < last; ++i) {
      const Instruction& x = program_.instructions[i];
      if (program::is_of_position(x.op)) {
        int k = 0;
        while (k < loop_.positions && !is_same_result(*loop_.of_position[k], x)) ++k;
        loop_.result[loop_.positions] =
            k < loop_.positions ? loop_.result[k] : register_of(kTileRegisters - 1 - k);
        loop_.of_position[loop_.positions++] = &x;
      }
      if (!program::is_row_reduction(x.op)) continue;
      const int k = loop_.reductions++;
      loop_.sums[k] = &reductions[k].lanes;
      loop_.operands[k] = program::is_sum(x.op) ? nullptr : register_of(k);
      loop_.reduction[k] = &x;
      loop_.only_sums = loop_.only_sums && program::is_sum(x.op);
    }
  }

  // Runs the prepared loop for a tile, and considers or keeps what it has written for extremes and row_keep.
  void run_loop(const TileColumns& in, int n, float* grad, LossSums* outputs, Reduction* reductions) {
    for (int k = 0; k < loop_.positions; ++k)
      if (k == 0 || loop_.result[k] != loop_.result[k - 1])
        compute_of_position(*loop_.of_position[k], n, loop_.result[k]);
    float* scanned[program::kMaxScanned];
    for (int k = 0; k < program_.scanned; ++k) scanned[k] = scanned_of(k) + position_;
    compiled_loop(loop_.segment->compiled)(
        {loop_.uniforms, grad, outputs, loop_.sums, loop_.operands, loop_.result, scanned}, in, n);
    if (loop_.only_sums) return;
    for (int k = 0; k < loop_.reductions; ++k) {
      const Instruction& x = *loop_.reduction[k];
      if (!program::is_sum(x.op)) add_operand(x, {loop_.operands[k]}, in, n, &reductions[k]);
    }
  }

  // Considers the operand of an extreme, or keeps it.
  void add_operand(const Instruction& x, const TokenOperand& operand, const TileColumns& in, int n,
                   Reduction* r) {
    if (x.op == Op::k_row_keep) {
      r->kept += keep(operand, in.lanes, n, values_.kept_values(x.out) + r->kept);
      return;
    }
    const bool wants_position = program::is_position(x.op);
    if (program::is_largest(x.op))
      r->extreme.add<true>(operand, in.lanes, n, position_, wants_position);
    else
      r->extreme.add<false>(operand, in.lanes, n, position_, wants_position);
  }

  void reduce_tile(const Segment& segment, const TileColumns& in, int n, Reduction* reductions) {
    if (has_loop(segment)) {
      prepare_loop(segment, segment.last, reductions);
      return run_loop(in, n, nullptr, nullptr, reductions);
    }
    ReadAhead ahead(program_, in, n, segment.last - segment.first, nullptr);
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction& x = program_.instructions[i];
      ahead.step();
      if (!program::is_row_reduction(x.op) && !program::is_scan(x.op)) {
        compute(x, in, n);
        continue;
      }
      const TokenOperand operand = token_operand(x.operand[0], in);
      if (program::is_scan(x.op)) {
        write_kept(operand, 1.0f, in.lanes, n, scanned_of(x.out) + position_);
        continue;
      }
      Reduction* const r = reductions++;
      if (x.op == Op::k_row_sum)
        add_to_row_sum(operand, in.lanes, n, &r->lanes.precise);
      else if (x.op == Op::k_row_sum_single)
        add_to_token_sum(operand, in.lanes, n, &r->lanes.single);
      else
        add_operand(x, operand, in, n, r);
    }
  }

  double result(Op op, const Reduction& r) const {
    if (program::is_sum(op)) return r.sum;
    if (op == Op::k_row_keep) return values_.row_input[program::kRowTokens];
    return program::is_position(op) ? static_cast<double>(r.extreme.position) : r.extreme.value;
  }

  const ProgramView& program_;
  const cpu::ProgramPass& pass_;
  const Layout& layout_;
  ProgramValues values_;
  int64_t position_ = 0;      // of the current tile's first token in the row
  float* scanned_ = nullptr;  // the first scanned values of the row
  RowLoop loop_;
  const int reducing_;          // the number of reductions in the segment after the one with the outputs
  const bool has_output_loop_;  // whether a loop computes the segment with the outputs
  const int tile_size_;
  Reduction reductions_[program::kMaxReductions];             // these reductions
  Reduction reductions_of_segment_[program::kMaxReductions];  // those of the segment that is run for the row
  double own_row_[2 * program::kMaxValues];
  alignas(64) float registers_[kTileRegisters * (kSharedTile + kPadding)];
  alignas(64) float unwanted_grad_[kSharedTile];  // a loop that computes a gradient always writes it
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Runs a program (see program/program.h) for one row after another: its token segments tile by tile, and its
// row segments once. A pass first runs the segments before the outputs, then the outputs, which the token
// pass asks for tile by tile, and then the segments after them.
#pragma once

#include "cpu/program_tiles.h"
#include "cpu/ranks.h"
#include "cpu/row_sums.h"
#include "cpu/scans.h"
#include "program/groups.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

class ProgramRows {
 public:
  explicit ProgramRows(const cpu::TokenPass& pass)
      : program_(*pass.program.program), pass_(pass.program), values_(pass), tiles_(pass, values_) {}

  // The most tokens of a tile.
  int tile_size() const { return tiles_.size(); }
  int metrics() const { return program_.metrics; }

  // Begins a row of `tokens` unmasked tokens.
  void start_row(int64_t row, double tokens, double weight, double repeats) {
    values_.start_row(row, pass_.row_values ? pass_.row_values + row * cpu::row_stride(program_) : own_row_);
    values_.row_input[program::kRowTokens] = tokens;
    values_.row_input[program::kRowWeight] = weight;
    values_.row_input[program::kRowRepeats] = repeats;
    values_.row_input[program::kPlaceInPair] =
        place_in_pair(values_.pass.batch->row_column[kNextInPair], row);
    values_.row_input[program::kRowIndex] = static_cast<double>(row);
    tiles_.start_row();
    if (reduces_after_outputs())
      after_outputs_.begin(program_, program_.segments[program_.output_segment + 1]);
  }

  // Runs the pass's segments for the row, which end before the segment with the outputs or begin after it.
  void run_pass(TileReader& reader, int64_t length) {
    run_segments(pass_.first_segment, pass_.last_segment, reader, length);
  }

  // Returns the columns that the pass's segments read before the one with the outputs.
  unsigned columns_before_outputs() const {
    return program_.token_columns(pass_.first_segment, pass_.last_segment);
  }

  // Runs the segment with the outputs for a tile, and the token segment that follows it, if there is one
  // without scans, while the tile is in the cache. See ProgramTiles::output().
  void output(const TileColumns& in, int n, int64_t position, float* grad, float* grad_entropy,
              LossSums* sums) {
    tiles_.output(in, n, position, grad, grad_entropy, sums, &after_outputs_);
  }

  // Ends the sums over kSumTokens tokens.
  void end_sums() { after_outputs_.end_sums(); }

  // Runs the segments after the one with the outputs, and adds what they output to the sums.
  void finish_row(TileReader& reader, int64_t length, ExactSums* sums) {
    after_outputs_.write_results(&values_);
    const int first = program_.output_segment + (reduces_after_outputs() ? 2 : 1);
    run_segments(first, program_.segment_count, reader, length);
    const double repeats = values_.row_input[program::kRowRepeats];
    if (values_.loss != 0) sums->add(ExactSums::kLoss, repeats * values_.loss);
    for (int k = 0; k < program_.metrics; ++k)
      if (values_.metric[k] != 0) sums->add(ExactSums::kMetric + k, repeats * values_.metric[k]);
  }

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
  // Returns whether the segment after the one with the outputs is reduced together with it.
  bool reduces_after_outputs() const {
    const int next = program_.output_segment + 1;
    return next < program_.segment_count && program_.segments[next].scans == 0 &&
           program_.segments[next].reductions > 0;
  }

  void run_segments(int first, int last, TileReader& reader, int64_t length) {
    for (int s = first; s < last; ++s) {
      const Segment& segment = program_.segments[s];
      if (segment.kind == Op::k_row) values_.run(segment);
      if (segment.kind == Op::k_tokens) reduce_row(segment, reader, length);
    }
  }

  // Runs a token segment without outputs for all tokens of the row, and then its scans.
  void reduce_row(const Segment& segment, TileReader& reader, int64_t length) {
    tiles_.start_row();
    reductions_.begin(program_, segment);
    for (int64_t at = 0; at < length; at += tile_size()) {
      const int n = static_cast<int>(length - at < tile_size() ? length - at : tile_size());
      reader.fetch_mask(at + n, n);
      const int unmasked = reader.unmasked_length(at, n);
      reader.tiles(at, unmasked, MaskUse::kLanes,
                   [&](const TileColumns& in, int padded, int64_t position, int) {
                     tiles_.reduce(segment, in, padded, position, &reductions_);
                   });
      for_scans(segment, [&](const Instruction& x) {
        for (int i = unmasked; i < n; ++i) tiles_.scanned_of(x.out)[at + i] = 0;
      });
      if (ends_sum(at + n, length, kSumTokens)) reductions_.end_sums();
    }
    tiles_.start_row();
    reductions_.write_results(&values_);
    for_scans(segment, [&](const Instruction& x) {
      const double decay = x.operands > 1 ? values_.get(x.operand[1]) : 0.0;
      if (x.op == Op::k_token_rank)
        cpu::replace_with_ranks(reader.mask(0), length, pass_.keys, tiles_.scanned_of(x.out));
      else
        scan(x.op, decay, reader.mask(0), reader.solid(), length, tiles_.scanned_of(x.out));
    });
  }

  // Calls visit(instruction) for the scans of a segment.
  template <class Visit>
  void for_scans(const Segment& segment, Visit visit) {
    if (segment.scans == 0) return;
    for (int i = segment.first; i < segment.last; ++i)
      if (program::is_scan(program_.instructions[i].op)) visit(program_.instructions[i]);
  }

  const ProgramView& program_;
  const cpu::ProgramPass& pass_;
  ProgramValues values_;
  ProgramTiles tiles_;
  RowReductions after_outputs_;  // of the segment that is reduced together with the one with the outputs
  RowReductions reductions_;     // of the segment that is run for the row
  double own_row_[2 * program::kMaxValues];
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

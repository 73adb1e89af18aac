// Loops that compute a whole token segment of a program at once. They exist for the compiled segments
// (program/compiled.h).
#pragma once

#include "cpu/loops.h"
#include "program/program.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The partial sums over the tokens of a row: in float64 for row_sum, and in float32 for row_sum_single.
struct RowSum {
  LaneSum<double> precise;
  LaneSum<float> single;
};

// What a loop reads and writes.
struct CompiledSegment {
  const float* uniforms;        // the operands that are one number for all tokens, in their order
  float* grad = nullptr;        // the gradients of the tile, if the segment outputs them
  LossSums* outputs = nullptr;  // if the segment outputs losses and metrics
  RowSum* const* sums;          // of the reductions
  float* const* extremes;       // where the loop writes the operands of extremes, by reduction; else null
  // The results of the instructions that depend on positions, in their order.
  const float* const* of_positions;
  // The scanned values of the tile. The loop writes the operands of scans there.
  float* const* scanned;
};

// Computes n tokens, a multiple of kGranule.
using CompiledLoop = void (*)(const CompiledSegment& segment, const TileColumns& in, int n);

CompiledLoop compiled_loop(int index);

// Returns whether a loop exists for the compiled segment that begins with a segment.
PL_FN bool has_loop(const program::Segment& segment) {
  return kHasSpecialLoops && segment.compiled >= 0;
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// The functions of the compiled segments (program/compiled.h), which `npm run generate` writes to generated/.
// An engine calls compute_segment(Index<index>(), io) for a token. `io` reads what the token has, and takes
// what the segment computes:
//
//   io.column(column), io.scanned(index)  a number of the token
//   io.uniform(index)                     a number that is the same for all tokens of the row
//   io.is_at(number, index), io.is_up_to(number, index), io.draw(number, index)
//                                         the results of these operations on a uniform number
//   io.loss(x), io.metric(index, x), io.loss_and_metric(index, x)
//                                         outputs, which the engine sums before it applies their factors
//   io.grad(x, factor)                    the gradient: x times the factor
//   io.row_sum(number, x), io.row_sum_single(number, x), io.row_operand(op, number, x)
//                                         the operands of reductions
//   io.scan(op, index, x)                 the operand of a scan
#pragma once

#include "generated/segments.h"

namespace policy_loss::program {

// Returns the instructions of a compiled segment.
template <int index>
constexpr Trace trace_of() {
  Trace trace;
  compute_segment(Index<index>(), trace);
  return trace;
}

template <int index>
constexpr SegmentShape kShape = trace_of<index>().shape();

// Calls visit(Index<index>()) for the compiled segment with an index.
template <int first = 0, int last = kSegments, class Visit>
PL_FN void with_segment(int index, const Visit& visit) {
  if constexpr (last - first == 1) {
    visit(Index<first>());
  } else {
    constexpr int middle = (first + last) / 2;
    if (index < middle)
      with_segment<first, middle>(index, visit);
    else
      with_segment<middle, last>(index, visit);
  }
}

}  // namespace policy_loss::program

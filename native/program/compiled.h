// The token segments that are compiled ahead of time (program/segments.h): those of the package's own losses
// with their default options. Engines run them instead of the interpreter, with the same bits. The values of
// options are not part of a segment, so it serves other values, too. The segment with the outputs and a token
// segment without scans after it are compiled as one.
#pragma once

#include <vector>

#include "program/program.h"

namespace policy_loss::program {

// Returns the index of the compiled segment that computes the same as these instructions of a token segment,
// or -1 if there is none. Sets `uniforms` to the operands that the segment takes as uniform numbers, in their
// order.
int compiled_segment(const Instruction* instructions, int count, const double* constants,
                     std::vector<Operand>* uniforms);

}  // namespace policy_loss::program

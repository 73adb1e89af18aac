// The token segments that are compiled ahead of time: those of the package's own losses with their default
// options. compiled_segments.inc lists them; `npm run generate` writes it. An engine may run such a segment
// in one loop, which gives the same bits as the interpreter. The values of options are not part of a segment,
// so the same loop serves other values. The segment with the outputs and a token segment without scans after
// it are listed as one.
#pragma once

#include <vector>

#include "program/program.h"

namespace policy_loss::program {

// Returns whether an operand is one number for all tokens of a row.
PL_FN constexpr bool is_uniform(Kind kind) {
  return kind != Kind::kRegister && kind != Kind::kColumn && kind != Kind::kScanned;
}

// Returns the index of the compiled segment that computes the same as these instructions of a token segment,
// or -1 if there is none. Sets `uniforms` to the operands that the loop takes as numbers, in their order.
int compiled_segment(const Instruction* instructions, int count, std::vector<Operand>* uniforms);

}  // namespace policy_loss::program

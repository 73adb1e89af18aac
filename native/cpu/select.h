// The selections of programs (see program/program.h) among the values that they keep, on the CPU.
#pragma once

#include <cstdint>

#include "cpu/target.h"

namespace policy_loss::cpu {

// Returns the value with a rank, from 0 for the smallest, of n values. A rank that does not exist becomes the
// nearest one that does. Of no values, returns 0.
double select_in_row(const float* values, int64_t n, double rank);

// Runs a selection over all rows. `kept` is the number of the kept values, and `by` the second operand.
double select_over_rows(const TokenPass& pass, program::Op op, int kept, double by);

// Returns where the values with a number that the tokens of a row keep are. They have no gaps for masked
// tokens.
PL_FN float* kept_values(const TokenPass& pass, int kept, int64_t row) {
  const Layout& layout = pass.batch->layout;
  return pass.program.kept + kept * layout.tokens() + layout.begin(row);
}

}  // namespace policy_loss::cpu

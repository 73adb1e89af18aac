// The loops of the interpreter of user-defined losses (see program/program.h). Each loop computes one
// instruction for a tile. A table holds the loops.
#pragma once

#include "cpu/tile.h"
#include "program/draw.h"
#include "program/interpret.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// An operand of an instruction for tokens: one number per token or, if `data` is null, one number for all.
struct TokenOperand {
  const float* data = nullptr;
  float value = 0;

  PL_FN bool is_uniform() const { return !data; }
};

// Computes an arithmetic operation for n tokens, a multiple of kGranule. `out` may be the data of an operand.
using ArithmeticLoop = void (*)(const TokenOperand* operands, int n, float* out);

// Returns the loop of an arithmetic operation. Bit i of `uniform` tells whether operand i is one number for
// all tokens. At least one of the operation's operands must not be.
ArithmeticLoop arithmetic_loop(Op op, unsigned uniform);

// Adds the operand's values at unmasked tokens to a sum. Each token belongs to the partial sum of its
// position.
void add_to_row_sum(const TokenOperand& x, const Lane* lanes, int n, LaneSum<double>* sum);
void add_to_token_sum(const TokenOperand& x, const Lane* lanes, int n, LaneSum<float>* sum);
// Writes x times the factor for unmasked tokens and 0 for masked ones.
void write_unmasked(const TokenOperand& x, float factor, const Lane* lanes, int n, float* out);
// Adds x times the factor for unmasked tokens.
void add_unmasked(const TokenOperand& x, float factor, const Lane* lanes, int n, float* out);
// Writes 1 at index `at` and 0 elsewhere. `at` may be any number.
void write_is_at(double at, int n, float* out);
// Writes 1 up to index `last` and 0 after it. `last` may be any number.
void write_is_up_to(double last, int n, float* out);
// Writes the random numbers of the tokens that begin at a position in the row.
void write_draws(const RowDraws& draws, int64_t position, int n, float* out);
// Appends x at the unmasked ones of n tokens, a multiple of kGranule, to `out`. Returns how many these are.
int64_t gather(const TokenOperand& x, const Lane* lanes, int n, float* out);

// The smallest or largest value of a row so far. NaN replaces any number.
struct Extreme {
  bool exists = false;
  float value = 0;
  int64_t position = -1;  // the first that has the value, if it is wanted

  // Considers the unmasked values of a tile whose first token is at `first`.
  template <bool largest>
  void add(const TokenOperand& x, const Lane* lanes, int n, int64_t first, bool wants_position);
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

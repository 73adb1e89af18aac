// The contract of advantage functions. Each function has one of four shapes:
//
// - group.h: computes one score per row from the rewards of the rows that answer the same prompt;
// - recurrence.h: computes one sum per token over the rest of its row, from token rewards and values;
// - distill.h: computes one value per token from the log-probabilities under two policies;
// - token_baseline.h: compares each token's reward to go with that of the same token in the group's other
// rows.
//
// Like a loss (loss/loss.h), each function is a small, trivially copyable struct that is constructed from its
// Options. Its `traits` set only the properties that differ from the defaults of its shape.
#pragma once

#include "columns.h"
#include "math/scalar.h"

namespace policy_loss {

// verl adds this to the number of tokens when it takes the mean over them.
constexpr double kVerlTokens = 1e-8;

}  // namespace policy_loss

// The contract of an advantage function. An advantage function has one of three shapes:
//
// - group.h: computes one score per row from the rewards of the rows that answer the same prompt;
// - recurrence.h: computes one sum per token over the rest of its row, from token rewards and values;
// - distill.h: computes one value per token from two policies' log-probabilities.
//
// Like a loss (loss/loss.h), each function is a small, trivially copyable struct that is constructed from its
// Options. Its `traits` name the properties that differ from the defaults of its shape.
#pragma once

#include "columns.h"
#include "math/scalar.h"

namespace policy_loss {

// The columns that advantage functions read. They take the slots of a loss's columns in BatchView::column, so
// one batch cannot hold both.
enum AdvantageColumn : unsigned { kTokenRewards, kSampledLogprob, kTeacherLogprob, kValues };
static_assert(kValues < kColumns);

}  // namespace policy_loss

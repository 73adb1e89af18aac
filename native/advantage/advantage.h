// What an advantage function is, in the words that every header of this folder uses. There are three shapes:
//
// - group.h: a score for each row from the rewards of the rows that answer the same prompt;
// - recurrence.h: a sum over the rest of the row for each token, from rewards and values of tokens;
// - distill.h: a value for each token from two policies' log-probabilities of it.
//
// Each function is a small trivially copyable struct, made from its Options as a loss is (loss/loss.h).
#pragma once

#include "loss/loss.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The columns that advantage functions read, in the slots of BatchView::column. A batch that is viewed for
// them has no others.
enum AdvantageColumn : unsigned { kTokenRewards, kSampledLogprob, kTeacherLogprob, kValues };
static_assert(kValues < kColumns);

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// The lists of all advantage functions, one for each shape. All devices and the binding follow from them.
#pragma once

#include "advantage/distill.h"
#include "advantage/group.h"
#include "advantage/recurrence.h"
#include "engine/registry.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

using GroupAdvantages = TypeList<Grpo, StepWiseGrpo, Rloo, Reinforce, OpmdAdvantage, Asymre, RecAdvantage>;
using RecurrentAdvantages = TypeList<Gae, ReinforcePlusPlus, Remax>;
using DistillAdvantages = TypeList<OnPolicyDistill, Jsd>;

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

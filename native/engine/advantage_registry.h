// Lists all advantage functions, with one list for each of their three shapes (advantage/advantage.h). The
// CPU engine, the CUDA engine and the addon are made from these lists.
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

// Lists all advantage functions, with one list for each of their four shapes (advantage/advantage.h). The
// CPU engine, the CUDA engine and the addon are made from these lists.
#pragma once

#include "advantage/distill.h"
#include "advantage/group.h"
#include "advantage/recurrence.h"
#include "advantage/token_baseline.h"
#include "advantage/verl_group.h"
#include "engine/registry.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

using GroupAdvantages =
    TypeList<Grpo, StepWiseGrpo, Rloo, Reinforce, OpmdAdvantage, Asymre, RecAdvantage, VerlGrpo, VerlRloo,
             VerlReinforceBaseline, VerlPassK, VerlOpo, VerlGpg, VerlGdpo>;
using RecurrentAdvantages = TypeList<Gae, ReinforcePlusPlus, Remax, VerlGae, VerlReinforcePlusPlus>;
using DistillAdvantages = TypeList<OnPolicyDistill, Jsd>;
using BaselineAdvantages = TypeList<OptimalTokenBaseline, TirOptimalTokenBaseline>;

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

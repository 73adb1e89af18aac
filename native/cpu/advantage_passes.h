// The passes for advantage functions, each on one chunk of a batch. The struct Target in target.h describes
// them.
#pragma once

#include "cpu/target.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

void find_row_statistics(const cpu::AdvantagePass& pass, const cpu::Chunk& chunk, NonFiniteValue* bad);
void broadcast(const cpu::AdvantagePass& pass, const cpu::Chunk& chunk);
void measure(const cpu::AdvantagePass& pass, const cpu::Chunk& chunk, Spread* spreads, NonFiniteValue* bad);
void recur(const cpu::AdvantagePass& pass, const cpu::Chunk& chunk, NonFiniteValue* bad);
void distill(const cpu::AdvantagePass& pass, const cpu::Chunk& chunk, double* partial);
void subtract_baselines(const cpu::AdvantagePass& pass, const cpu::BaselineRows& group, NonFiniteValue* bad);

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

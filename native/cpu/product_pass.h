// The product of matrices (see target.h).
#pragma once

#include "cpu/target.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

void multiply(const Product& product, const cpu::ProductPart& part, cpu::ProductMemory* memory);

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

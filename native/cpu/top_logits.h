// Finds the tokens with the largest logits on the CPU.
#pragma once

#include <cstdint>

#include "logits/call.h"

namespace policy_loss::cpu {

// Writes LogitsCall::top_ids of a row.
void write_top_ids(const LogitsCall& call, int64_t row);

}  // namespace policy_loss::cpu

// Ranks of a row's tokens (see program/program.h) on the CPU.
#pragma once

#include <cstdint>

namespace policy_loss::cpu {

// Replaces the values of the unmasked tokens of a row with their ranks. `keys` has room for one key per
// token.
void replace_with_ranks(const uint8_t* mask, int64_t length, uint64_t* keys, float* values);

}  // namespace policy_loss::cpu

// The entry points of the fuzzer, one for each kind of call. Each function reads a call from the input, runs
// the call in several ways and checks the results.
#pragma once

#include "test/fuzz/input.h"

namespace fuzz {

void fuzz_evaluation(Bytes& in);  // of losses, KL losses and entropy losses
void fuzz_kl_values(Bytes& in);
void fuzz_advantages(Bytes& in);

}  // namespace fuzz

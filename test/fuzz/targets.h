// The entry points of the fuzzer, one for each kind of call. Each function reads a call from the input, runs
// the call in several ways and checks the results.
#pragma once

#include "test/fuzz/input.h"

namespace fuzz {

// Of losses, KL losses and entropy losses. If of_program is set, the loss is a program.
void fuzz_evaluation(Bytes& in, bool of_program);
void fuzz_kl_values(Bytes& in);
void fuzz_advantages(Bytes& in);
void fuzz_logits(Bytes& in);

}  // namespace fuzz

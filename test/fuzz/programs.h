// Makes programs of user-defined losses from a fuzzer's input. They obey all rules of program.h.
#pragma once

#include <memory>

#include "engine/function.h"
#include "test/fuzz/input.h"

namespace fuzz {

std::shared_ptr<const policy_loss::ProgramLoss> read_program_loss(Bytes& in);

}  // namespace fuzz

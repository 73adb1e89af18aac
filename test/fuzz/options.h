// Makes the options of a function from a fuzzer's input.
#pragma once

#include <vector>

#include "engine/function.h"
#include "test/fuzz/batch.h"

namespace fuzz {

// Returns options in the order of the function's `fields`. They are ordinary values. With kAny, some are
// extreme numbers.
std::vector<double> read_options(Bytes& in, Values values, const std::vector<OptionInfo>& options);

}  // namespace fuzz

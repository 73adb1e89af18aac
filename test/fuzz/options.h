// Makes the options of a function from a fuzzer's input.
#pragma once

#include <vector>

#include "engine/function.h"
#include "test/fuzz/batch.h"

namespace fuzz {

// Returns one value per option, in the order of `options`. The values are ordinary, but with kAny some of
// them are extreme numbers.
std::vector<double> read_options(Bytes& in, Values values, const std::vector<OptionInfo>& options);

}  // namespace fuzz

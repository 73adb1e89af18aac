// Options of a function that a fuzzer's input describes.
#pragma once

#include <vector>

#include "engine/function.h"
#include "test/fuzz/batch.h"

namespace fuzz {

// Returns options in the order of the function's fields: ordinary ones, or with kAny also extreme numbers.
std::vector<double> read_options(Bytes& in, Values values, const std::vector<OptionInfo>& options);

}  // namespace fuzz

// What the emulation has counted, for tests of how much a kernel reads.
#pragma once

#include <cstdint>

namespace emulation {

// Returns how many bytes kernels have copied into shared memory asynchronously.
int64_t bytes_copied();

}  // namespace emulation

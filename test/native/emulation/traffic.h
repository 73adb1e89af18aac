// Counts that tests use to check how much memory a kernel reads.
#pragma once

#include <cstdint>

namespace emulation {

// Returns how many bytes kernels have copied into shared memory asynchronously.
int64_t bytes_copied();

}  // namespace emulation

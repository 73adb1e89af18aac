// Counts how much memory kernels read, so that tests can check it.
#pragma once

#include <cstdint>

namespace emulation {

// Returns the number of bytes that kernels have copied into shared memory with asynchronous copies so far.
int64_t bytes_copied();

}  // namespace emulation

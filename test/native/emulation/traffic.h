// What the emulation has counted, for tests that see to how much a kernel reads.
#pragma once

#include <cstdint>

namespace emulation {

// Bytes that kernels have had copied into shared memory.
int64_t bytes_copied();

}  // namespace emulation

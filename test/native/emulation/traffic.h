// Counts what calls do, so that tests can check it: how much memory kernels read, how many kernels are
// launched, how often blocks take turns, and how often the host waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulation {

// Returns the number of bytes that kernels have copied into shared memory with asynchronous copies so far.
int64_t bytes_copied();
// Returns how many of these bytes each block of the newest grid has copied.
std::vector<int64_t> bytes_copied_by_blocks();
// Returns how often a resident block (grid.cc) has let another one go on so far.
int64_t block_switches();
// Adds to that number. Called by the copies.
void count_copied(size_t bytes);

// Return how many kernels have been launched so far, and how often the host has waited for a stream or an
// event. Asking for an event that the device has not reached yet does not count.
int64_t launches();
int64_t waits();

}  // namespace emulation

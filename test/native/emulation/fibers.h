// Fibers are separate stacks, and one host thread jumps between them. The emulation runs each thread of a
// CUDA block on a fiber of its own.
#pragma once

#include <cstddef>

namespace emulation {

// Creates fibers until n of them exist, and makes all fibers call body() in an endless loop. Before body()
// returns, it must call switch_fiber() or leave_fibers().
void make_fibers(size_t n, void (*body)());
// Destroys all fibers, even those that stopped in the middle of body().
void drop_fibers();

// Continues this fiber. Returns when a fiber calls leave_fibers() or abandon_fiber(). Must be called from the
// host thread's own stack, not on a fiber.
void run_fiber(size_t fiber);

// switch_fiber() continues the fiber `to`; leave_fibers() makes run_fiber() return. Both must be called on
// the fiber `from`, and return when `from` is continued.
void switch_fiber(size_t from, size_t to);
void leave_fibers(size_t from);

// Makes run_fiber() return. The fiber that called abandon_fiber() must not be continued afterwards.
[[noreturn]] void abandon_fiber();

}  // namespace emulation

// Fibers: stacks of their own, between which one host thread jumps. A block's threads run on them.
#pragma once

#include <cstddef>

namespace emulation {

// Makes sure that at least n fibers exist. Each of them calls body() again and again; body() has to hand over
// to another fiber before it returns.
void make_fibers(size_t n, void (*body)());
// Drops all fibers, wherever they are.
void drop_fibers();

// Called from outside the fibers. Goes on with a fiber and returns when one of them leaves.
void run_fiber(size_t fiber);

// Called on a fiber. Both return when somebody goes on with this fiber.
void switch_fiber(size_t from, size_t to);
void leave_fibers(size_t from);

// Called on a fiber. Leaves, never to return to it.
[[noreturn]] void abandon_fiber();

}  // namespace emulation

// Fibers: separate stacks between which one host thread jumps. The threads of a block run on them.
#pragma once

#include <cstddef>

namespace emulation {

// Makes sure that at least n fibers exist. Each fiber calls body() again and again. Before body() returns it
// must switch to another fiber, or leave.
void make_fibers(size_t n, void (*body)());
// Destroys all fibers, wherever they have stopped.
void drop_fibers();

// Continues a fiber and returns when any fiber leaves. Must be called from outside the fibers.
void run_fiber(size_t fiber);

// Switch from this fiber to another, or leave the fibers. Both return when this fiber is continued. Must be
// called on fiber `from`.
void switch_fiber(size_t from, size_t to);
void leave_fibers(size_t from);

// Leaves the running fiber for ever.
[[noreturn]] void abandon_fiber();

}  // namespace emulation

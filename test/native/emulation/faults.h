// Makes functions of the emulated runtime fail, and counts what they have handed out, so that tests can check
// that the engine survives failures and loses nothing.
//
// The functions of the runtime are counted from the start of the process, in the order of the calls. Those
// that only ask for an error are not counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace emulation {

// How a function fails: only this once, or because a kernel has failed, so that all later functions fail too.
enum class Failing { kOnce, kSticky };

// Returns the number of calls of the runtime so far.
int64_t runtime_calls();
// Makes one function fail: the n-th from now, counted from 1. It has no effect then. If n is 0, none fails.
void fail_call(int64_t n, Failing how);
// Returns the name of the function that failed last in this way, or an empty string if none has failed since
// fail_call().
std::string failed_call();

// What the runtime has handed out and not got back.
struct Holdings {
  int64_t device_bytes, pinned_bytes, streams, events, pools;
  bool operator==(const Holdings&) const = default;
};
// Runs the work that streams still hold, and then counts.
Holdings holdings();
// Returns how much freed device memory the pools of a real device would keep, after the same work.
int64_t cached_bytes();

// Makes the device usable again after a fault in a kernel, as a restart of the process would.
void restart();

}  // namespace emulation

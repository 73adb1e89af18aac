// The internal interface between the parts of the emulation. Kernels and tests include cuda_runtime.h
// instead.
//
// The caller of a function must hold the lock, unless the function's comment says otherwise.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

namespace emulation {

constexpr size_t kWarp = 32;

// ---- faults.cc: the lock, faults and the environment ----

// Every entry point holds the lock, so that only one host thread at a time is inside the emulation.
extern std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

// Records a fault, unless an earlier one has not been reported yet.
void record_fault(const std::string& message);
bool has_fault();
// Returns the error that a runtime call must report now, without clearing it.
cudaError_t last_error();
// Returns last_error() and clears it. reported_fault() then returns its message.
cudaError_t take_error();
const char* reported_fault();

uint64_t number_from_environment(const char* name, uint64_t otherwise);
// Returns POLICY_LOSS_EMULATION_SHUFFLE, or 0, which means that nothing is shuffled.
uint64_t shuffle_seed();

// ---- memory.cc: device memory and shared memory, between guard zones ----

size_t device_memory();
// Returns whether a device has room for another `bytes` bytes.
bool has_room(int device, size_t bytes);
// Allocates device memory. Returns null if the host has no memory.
void* allocate(int device, size_t bytes);
void give_back(void* memory);
// Records a fault if a kernel wrote to the guard zone of an allocation.
void check_guards();
// Fills a block's shared memory with NaN.
void fill_shared(size_t bytes);
void check_shared_guards(size_t bytes);

// ---- streams.cc: queues of work that run when someone waits for them ----

class Stream {
 public:
  void push(std::function<void()> work);
  // Returns the number of pieces of work that were pushed so far.
  uint64_t pushed() const { return pushed_; }
  // Runs the first `count` pieces of work, except those that have run already.
  void run_until(uint64_t count);

 private:
  std::deque<std::function<void()>> queue_;
  uint64_t pushed_ = 0, done_ = 0;
};

class Event {
 public:
  Stream* stream = nullptr;
  uint64_t count = 0;  // the pieces of the stream's work that come before the event
};

Stream* make_stream();
Event* make_event();
void run_all_streams();

}  // namespace emulation

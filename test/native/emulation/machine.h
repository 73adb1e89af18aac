// Declares what the parts of the CUDA emulation share. Kernels and tests include cuda_runtime.h instead.
//
// The caller of a function must hold the lock (`mutex`), unless the function's comment says otherwise.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

#include "faults.h"

namespace emulation {

constexpr size_t kWarp = 32;

// ---- faults.cc: the lock, the record of faults, and environment variables ----

// The lock. Emulated CUDA functions hold it, so that only one host thread at a time changes the emulation's
// state.
extern std::recursive_mutex& mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

// Records a fault, such as an access out of bounds. Does nothing after an earlier fault.
void record_fault(const std::string& message);
bool has_fault();
const char* message_of_fault();

// Returns `error`. If it is an error, cudaGetLastError() returns it too, on this thread.
cudaError_t set_error(cudaError_t error);
cudaError_t take_error();
// Must be called first by each function of the runtime. Returns the error with which the function must fail,
// or cudaSuccess. `failure` is the error with which it fails if a test wants it to (faults.h).
cudaError_t enter(const char* function, cudaError_t failure = cudaErrorUnknown);
// Takes the lock, counts the call, and returns if the function must fail.
#define ENTER(...)                                                                                  \
  const Lock lock(mutex);                                                                           \
  if (const cudaError_t failed = enter(__func__ __VA_OPT__(, ) __VA_ARGS__); failed != cudaSuccess) \
  return failed
// Returns cudaErrorLaunchFailure if a fault is recorded, and cudaSuccess otherwise.
cudaError_t state_of_device();

// Returns the number in an environment variable, or `otherwise` if it is unset or empty. May be called
// without the lock.
uint64_t number_from_environment(const char* name, uint64_t otherwise);
// Returns the seed in the environment variable POLICY_LOSS_EMULATION_SHUFFLE. The default is 0: blocks,
// threads and streams are not shuffled.
uint64_t shuffle_seed();

// ---- memory.cc: device memory and shared memory, between guard zones that kernels must not change ----

// Returns the memory size of each emulated device, in bytes. May be called without the lock.
size_t device_memory();
// Adds the memory that is allocated now.
void count_memory(Holdings* found);
// Returns whether a device has `bytes` bytes of unused memory.
bool has_room(int device, size_t bytes);
// Allocates memory of an emulated device. Other processes can map it if `shareable` is set. Returns null if
// the host does not have enough memory.
void* allocate(int device, size_t bytes, bool shareable);
// The file in which shareable memory lies, with its guard zones.
struct MemoryFile {
  int64_t descriptor = -1;
  size_t file_bytes = 0;
  size_t offset = 0;  // of the memory in the file
  size_t bytes = 0;
};
// Returns the file of the allocation that begins at this address. Its descriptor is -1 if there is none.
MemoryFile file_of(const void* begin);
// Maps the memory of another process. Returns null if that fails. give_back() unmaps it.
void* map_file(int device, const MemoryFile& file);
void give_back(void* memory);
// Calls visit() with the address and the size of each allocation of device memory.
void for_each_allocation(const std::function<void(unsigned char* memory, size_t bytes)>& visit);
// Records a fault if a copy reads or writes device memory that is not, or no longer, allocated.
void check_copy(const void* device, size_t bytes);
// Return memory of the host, between guard zones too, and take it back. There is as much of
// it as a device has memory.
void* allocate_pinned(size_t bytes);
void give_back_pinned(void* memory);
bool is_pinned(const void* pointer);
// Returns the device that has the memory at this address, or -1 if no device has memory there.
int device_of(const void* pointer);
// Records a fault if a guard zone of device memory or of pinned memory was changed.
void check_guards();
// permit() sets how much dynamic shared memory a launch of this kernel may use. check_shared() records a
// fault if a launch asks for more.
void permit(void* kernel, size_t bytes);
void check_shared(void* kernel, size_t bytes);

// The dynamic shared memory of one block at a time, between guard zones. Its memory grows, and is never
// freed.
class SharedMemory {
 public:
  // Prepares the memory of the next block: `bytes` bytes of NaN.
  void fill(size_t bytes);
  // Records a fault if a guard zone was changed.
  void check_guards(size_t bytes) const;
  char* begin() const { return reinterpret_cast<char*>(begin_); }

 private:
  unsigned char* room_ = nullptr;
  size_t room_bytes_ = 0;
  unsigned char* begin_ = nullptr;
};

// ---- stores.cc: the store buffers and caches of multiprocessors ----

// Must be called before and after a grid whose blocks have store buffers. `residents` is the number of blocks
// that run at the same time.
void begin_stores(size_t residents);
// Does nothing after another grid. The same holds for the functions below.
void end_stores();
// Must be called before and after each block. `resident` is below the number of residents.
void begin_block_stores(size_t resident);
void end_block_stores();
// Must be called before the running block lets another one go on, and when it goes on itself.
void leave_stores();
void enter_stores(size_t resident);

// ---- blocks.cc: the threads of a block ----

// Must be called before a grid with this number of blocks. Sets bytes_copied_by_blocks() (traffic.h) to 0.
void begin_counting(size_t blocks);

// ---- grid.cc: the blocks of a grid, which may take turns ----

// The kinds of points at which another resident block may go on.
enum SwitchPoint { kAtAtomic, kAtFence, kAtBarrier, kAtCollective, kSwitchPoints };
// Called by a running thread. May let other blocks run before it returns.
void may_switch_block(SwitchPoint point);

// ---- streams.cc: streams, whose work runs when a caller waits for it, or earlier if shuffled ----

class Stream {
 public:
  explicit Stream(int device) : device(device) {}
  const int device;
  bool destroyed = false;
  void push(std::function<void()> work);
  // Returns the number of pieces of work that push() has added so far.
  uint64_t pushed() const { return pushed_; }
  // Runs the first `count` pieces of work that push() added, except those that have run already.
  void run_until(uint64_t count);

 private:
  std::deque<std::function<void()>> queue_;
  uint64_t pushed_ = 0, done_ = 0;
};

class Event {
 public:
  explicit Event(int device) : device(device) {}
  const int device;
  Stream* stream = nullptr;
  uint64_t count = 0;  // the pieces of the stream's work that come before the event
};

// Appends work to the queue of a stream.
void enqueue(Stream* stream, std::function<void()> work);
Stream* make_stream(int device);
Event* make_event(int device);
// Returns the stream of a handle, which may be null for the default stream of `device`. Returns null if the
// handle belongs to no stream.
Stream* find_stream(Stream* handle, int device);
// Mark a stream or an event as destroyed. The objects stay, because other streams may still wait for them.
void destroy(Stream* stream);
void destroy(Event* event);
void count_streams(Holdings* found);
void run_all_streams();

// ---- runtime.cc ----

int64_t pools_in_use();
int device_count();
// Returns whether a device has `bytes` bytes of unused memory, after the work that streams still hold.
bool makes_room(int device, size_t bytes);

}  // namespace emulation

// The emulated runtime itself: blocks of fibers, lazy streams, memory with guard zones. See cuda_runtime.h.
#include "traffic.h"

#include <cuda_runtime.h>
#include <ucontext.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#include <sanitizer/common_interface_defs.h>
#endif
#endif

namespace emulation {

Indices indices;

namespace {

// One thread at a time is in the emulation.
std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

constexpr int kWarp = 32;
// Of CUDA.
constexpr int kVersion = 13000;
// Not a power of two: all stacks' tops would share one set of the cache.
constexpr size_t kStackBytes = 32 * 1024 + 192;

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// What went wrong first and has not been reported; empty: nothing.
std::string first_fault;
std::string reported_fault;

cudaError_t last_error() {
  return first_fault.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

// ---- A block: fibers and where they wait ----

// Where a fiber or the scheduler goes on. The compiler's own jumps: they save no more than where the stack
// is, which is what makes fibers cheap enough to have one for each thread.
using Place = void* [5];

// AddressSanitizer has to know which stack runs. It is told before each jump and after it; and the functions
// that jump are not instrumented, as it would take every jump for the end of a stack's frames.
#if ADDRESS_SANITIZER
#define PLAIN __attribute__((noinline, no_sanitize("address")))
struct Stack {
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* saved = nullptr;  // the sanitizer's own, of a stack that waits

  void leave(const Stack& next) { __sanitizer_start_switch_fiber(&saved, next.bottom, next.bytes); }
  // Not to come back.
  static void abandon(const Stack& next) { __sanitizer_start_switch_fiber(nullptr, next.bottom, next.bytes); }
  // previous: where the one that was left is to be known from.
  void arrive(Stack* previous) {
    __sanitizer_finish_switch_fiber(saved, &previous->bottom, &previous->bytes);
  }
};
#else
#define PLAIN __attribute__((noinline))
struct Stack {
  const void* bottom = nullptr;
  size_t bytes = 0;

  void leave(const Stack&) {}
  static void abandon(const Stack&) {}
  void arrive(Stack*) {}
};
#endif

struct LateCopy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Fiber {
  enum State { kReady, kAtBarrier, kAtExchange, kDone };
  State state = kReady;
  Site site;
  unsigned mask = 0;
  uint64_t value = 0;
  dim3 thread;
  std::vector<LateCopy> group;               // that no group has been made of yet
  std::deque<std::vector<LateCopy>> groups;  // that have not been waited for
  bool started = false;
  Place at;
  std::unique_ptr<char[]> memory;
  Stack stack;
};

std::vector<Fiber> fibers;                     // of the block that runs; stacks are kept from block to block
std::vector<std::vector<uint64_t>> exchanged;  // of each warp, the values of its last exchange
size_t running = 0;
size_t block_threads = 0;
const std::function<void()>* kernel_of_block = nullptr;
Place scheduler;
Stack scheduler_stack;
bool in_kernel = false;
int64_t copied = 0;

// Not in the function that the place is in, as the compiler demands.
[[noreturn]] PLAIN void jump(Place& place) {
  __builtin_longjmp(place, 1);
}

PLAIN void suspend(Fiber::State state, Site site) {
  Fiber& fiber = fibers[running];
  fiber.state = state;
  fiber.site = site;
  fiber.stack.leave(scheduler_stack);
  if (__builtin_setjmp(fiber.at) == 0) jump(scheduler);
  fibers[running].stack.arrive(&scheduler_stack);
}

// A fiber goes from block to block: to enter a stack takes system calls, to jump back into it none.
void enter_fiber() {
  fibers[running].stack.arrive(&scheduler_stack);
  for (;;) {
    (*kernel_of_block)();
    suspend(Fiber::kDone, {});
  }
}

// Runs a fiber until it waits or is done.
PLAIN void resume(size_t index) {
  Fiber& fiber = fibers[index];
  running = index;
  indices.thread = fiber.thread;
  if (!fiber.memory) {
    fiber.memory = std::make_unique<char[]>(kStackBytes);
    fiber.stack.bottom = fiber.memory.get();
    fiber.stack.bytes = kStackBytes;
  }
  scheduler_stack.leave(fiber.stack);
  if (__builtin_setjmp(scheduler) != 0) {
    scheduler_stack.arrive(&fibers[running].stack);
    return;
  }
  if (fiber.started) jump(fiber.at);
  fiber.started = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.memory.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, enter_fiber, 0);
  setcontext(&context);
}

// Lets those go on that all the others they wait for have joined.
bool release_barrier() {
  for (size_t i = 0; i < block_threads; ++i)
    if (fibers[i].state != Fiber::kAtBarrier || !(fibers[i].site == fibers[0].site)) return false;
  for (size_t i = 0; i < block_threads; ++i) fibers[i].state = Fiber::kReady;
  return true;
}

bool release_exchanges(size_t warp) {
  bool any = false;
  const size_t first = warp * kWarp;
  for (size_t i = first; i < first + kWarp && i < block_threads; ++i) {
    const Fiber& leader = fibers[i];
    if (leader.state != Fiber::kAtExchange) continue;
    bool complete = true;
    for (int lane = 0; lane < kWarp; ++lane) {
      if ((leader.mask >> lane & 1) == 0) continue;
      const size_t other = first + static_cast<size_t>(lane);
      complete = complete && other < block_threads && fibers[other].state == Fiber::kAtExchange &&
                 fibers[other].mask == leader.mask && fibers[other].site == leader.site;
    }
    if (!complete) continue;
    const unsigned mask = leader.mask;
    for (int lane = 0; lane < kWarp; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      Fiber& fiber = fibers[first + static_cast<size_t>(lane)];
      exchanged[warp][static_cast<size_t>(lane)] = fiber.value;
      fiber.state = Fiber::kReady;
    }
    any = true;
  }
  return any;
}

std::string describe(const Fiber& fiber) {
  const std::string who = "thread " + std::to_string(fiber.thread.x);
  if (fiber.state == Fiber::kDone) return who + " has ended";
  return who + (fiber.state == Fiber::kAtBarrier ? " is at the barrier " : " is at the shuffle ") +
         fiber.site.file + ":" + std::to_string(fiber.site.line);
}

void report_divergence() {
  const Fiber* waiting = nullptr;
  for (size_t i = 0; i < block_threads && !waiting; ++i)
    if (fibers[i].state != Fiber::kDone) waiting = &fibers[i];
  const Fiber* other = nullptr;
  for (size_t i = 0; i < block_threads && !other; ++i) {
    const Fiber& fiber = fibers[i];
    if (fiber.state != waiting->state || !(fiber.site == waiting->site) || fiber.mask != waiting->mask)
      other = &fiber;
  }
  first_fault = "divergence in block " + std::to_string(indices.block.x) + ": " + describe(*waiting) + ", " +
                (other ? describe(*other) : std::string("of which a lane in its mask is missing"));
}

void run_block(const std::vector<size_t>& order) {
  for (size_t i = 0; i < block_threads; ++i) {
    fibers[i].state = Fiber::kReady;
    fibers[i].mask = 0;
    fibers[i].group.clear();
    fibers[i].groups.clear();
    fibers[i].thread = dim3(static_cast<unsigned>(i));
  }
  for (;;) {
    bool progress = false;
    for (const size_t i : order) {
      if (fibers[i].state != Fiber::kReady) continue;
      in_kernel = true;
      resume(i);
      in_kernel = false;
      progress = true;
      if (!first_fault.empty()) return;
    }
    for (size_t warp = 0; warp * kWarp < block_threads; ++warp) progress |= release_exchanges(warp);
    progress |= release_barrier();
    if (progress) continue;
    for (size_t i = 0; i < block_threads; ++i) {
      if (fibers[i].state == Fiber::kDone) continue;
      report_divergence();
      return;
    }
    return;
  }
}

// 0: everything keeps its order.
uint64_t shuffle_seed() {
  return number_from_environment("POLICY_LOSS_EMULATION_SHUFFLE", 0);
}

std::vector<size_t> order_of(size_t n, uint64_t salt) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  if (const uint64_t seed = shuffle_seed()) {
    std::mt19937_64 random(seed * 1000003 + salt);
    for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  }
  return order;
}

// ---- Memory ----

constexpr size_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xdb;
constexpr unsigned char kFresh = 0xff;  // NaN, whatever the type

struct Allocation {
  size_t bytes;
  int device;
};
// Never destroyed, like all that follows here: a thread may be in the emulation still when the process ends,
// and the queues hold work that nobody has waited for, such as the freeing of memory.
auto& allocations = *new std::map<uintptr_t, Allocation>;
auto& used = *new std::map<int, size_t>;
thread_local int current_device = 0;

size_t device_memory() {
  return number_from_environment("POLICY_LOSS_EMULATION_MEMORY", size_t{1} << 32);
}

const std::pair<const uintptr_t, Allocation>* allocation_with(uintptr_t address) {
  auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return nullptr;
  --next;
  return address < next->first + next->second.bytes ? &*next : nullptr;
}

void check_guards() {
  for (const auto& [address, allocation] : allocations) {
    const unsigned char* const begin = reinterpret_cast<const unsigned char*>(address);
    for (size_t i = 1; i <= kGuardBytes; ++i) {
      const bool below = begin[-static_cast<ptrdiff_t>(i)] != kGuard;
      const bool above = begin[allocation.bytes + i - 1] != kGuard;
      if (!below && !above) continue;
      if (first_fault.empty())
        first_fault = "out of bounds: a kernel wrote " + std::string(below ? "before" : "past") +
                      " an allocation of " + std::to_string(allocation.bytes) + " bytes";
      return;
    }
  }
}

// The shared memory of the block that runs, between guards.
struct alignas(16) Chunk {
  unsigned char bytes[16];
};
auto& shared_memory = *new std::vector<Chunk>;
constexpr size_t kPlainShared = 48 * 1024 - 9 * 1024;
auto& permitted_shared = *new std::map<void*, size_t>;  // by kernel

void fill_shared(size_t bytes) {
  const size_t whole = (bytes + 15) / 16 * 16;
  shared_memory.resize((whole + 2 * kGuardBytes) / sizeof(Chunk));
  unsigned char* const begin = shared_memory[0].bytes;
  std::memset(begin, kGuard, whole + 2 * kGuardBytes);
  std::memset(begin + kGuardBytes, kFresh, bytes);
}

void check_shared_guards(size_t bytes) {
  const unsigned char* const begin = shared_memory[0].bytes + kGuardBytes;
  for (size_t i = 1; i <= kGuardBytes; ++i)
    if ((begin[-static_cast<ptrdiff_t>(i)] != kGuard || begin[bytes + i - 1] != kGuard) &&
        first_fault.empty())
      first_fault = "out of bounds: a kernel wrote beyond the " + std::to_string(bytes) +
                    " bytes of shared memory that its launch asked for";
}

void give_back(void* memory) {
  const auto found = allocations.find(reinterpret_cast<uintptr_t>(memory));
  if (found == allocations.end()) {
    if (first_fault.empty()) first_fault = "memory is given back that is not there";
    return;
  }
  used[found->second.device] -= found->second.bytes;
  allocations.erase(found);
  std::free(static_cast<unsigned char*>(memory) - kGuardBytes);
}

}  // namespace

// ---- Streams: queues that run when someone waits ----

class Stream {
 public:
  void push(std::function<void()> work) {
    queue_.push_back(std::move(work));
    ++pushed_;
  }
  uint64_t pushed() const { return pushed_; }
  void run_until(uint64_t count) {
    while (done_ < count) {
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      ++done_;
      work();
    }
  }

 private:
  std::deque<std::function<void()>> queue_;
  uint64_t pushed_ = 0, done_ = 0;
};

class Event {
 public:
  Stream* stream = nullptr;
  uint64_t count = 0;  // of the stream's work that comes before
};

namespace {
auto& streams = *new std::vector<std::unique_ptr<Stream>>;
auto& events = *new std::vector<std::unique_ptr<Event>>;
auto& pools = *new std::vector<std::unique_ptr<int>>;

void run_everything() {
  for (const auto& stream : streams) stream->run_until(stream->pushed());
}
}  // namespace

void enqueue(Stream* stream, std::function<void()> work) {
  const Lock lock(mutex);
  stream->push(std::move(work));
  // When shuffled, a stream may also be ahead of the others instead of as late as it can be.
  static std::mt19937_64 random(1);
  if (shuffle_seed() != 0 && random() % 4 == 0) stream->run_until(stream->pushed());
}

char* launch_memory() {
  return reinterpret_cast<char*>(shared_memory.data() + kGuardBytes / sizeof(Chunk));
}

void permit_shared(void* kernel, size_t bytes) {
  const Lock lock(mutex);
  permitted_shared[kernel] = bytes;
}

void check_shared(void* kernel, size_t bytes) {
  const Lock lock(mutex);
  const auto permitted = permitted_shared.find(kernel);
  if (bytes > (permitted == permitted_shared.end() ? kPlainShared : permitted->second) && first_fault.empty())
    first_fault = "a launch asks for " + std::to_string(bytes) + " bytes of shared memory";
}

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel) {
  // After a fault nothing runs until it has been reported.
  if (!first_fault.empty()) return;
  block_threads = block.x;
  if (fibers.size() < block_threads) fibers.resize(block_threads);
  exchanged.assign((block_threads + kWarp - 1) / kWarp, std::vector<uint64_t>(kWarp));
  kernel_of_block = &kernel;
  indices.block_size = block;
  indices.grid_size = grid;
  static uint64_t launches = 0;
  ++launches;
  for (const size_t index : order_of(grid.x, launches)) {
    indices.block = dim3(static_cast<unsigned>(index));
    fill_shared(shared_bytes);
    run_block(order_of(block_threads, launches + 31 * index));
    check_shared_guards(shared_bytes);
    if (!first_fault.empty()) break;
  }
  // After a fault, fibers are left in the middle of things.
  if (!first_fault.empty()) fibers.clear();
  check_guards();
}

void wait_at_barrier(Site site) {
  suspend(Fiber::kAtBarrier, site);
}

const uint64_t* exchange(unsigned mask, uint64_t value, Site site) {
  if ((mask >> lane() & 1) == 0)
    fault("%s:%d: lane %d is not in the mask of its own shuffle", site.file, site.line, lane());
  fibers[running].mask = mask;
  fibers[running].value = value;
  suspend(Fiber::kAtExchange, site);
  return exchanged[running / kWarp].data();
}

int lane() {
  return static_cast<int>(running % kWarp);
}

PLAIN void fault(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (first_fault.empty()) first_fault = text;
  if (!in_kernel) std::abort();
  Stack::abandon(scheduler_stack);
  jump(scheduler);
}

int64_t bytes_copied() {
  const Lock lock(mutex);
  return copied;
}

void copy_later(void* to, const void* from, size_t bytes) {
  copied += static_cast<int64_t>(bytes);
  static std::mt19937_64 random(2);
  if (shuffle_seed() != 0 && random() % 4 == 0)
    std::memcpy(to, from, bytes);
  else
    fibers[running].group.push_back({to, from, bytes});
}

void end_group() {
  Fiber& fiber = fibers[running];
  fiber.groups.push_back(std::exchange(fiber.group, {}));
}

void finish_groups_but(size_t last) {
  auto& groups = fibers[running].groups;
  for (; groups.size() > last; groups.pop_front())
    for (const LateCopy& copy : groups.front()) std::memcpy(copy.to, copy.from, copy.bytes);
}

void check_access(const void* pointer, size_t bytes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  if (address % bytes != 0)
    fault("misaligned: %zu bytes at %p in thread %u", bytes, pointer, indices.thread.x);
  const auto* found = allocation_with(address);
  if (!found || address + bytes > found->first + found->second.bytes)
    fault("out of bounds: %zu bytes at %p, in no allocation, by thread %u of block %u", bytes, pointer,
          indices.thread.x, indices.block.x);
}

}  // namespace emulation

using namespace emulation;

cudaError_t cudaGetLastError() {
  const Lock lock(mutex);
  const cudaError_t error = last_error();
  if (error != cudaSuccess) reported_fault = std::exchange(first_fault, {});
  return error;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorLaunchFailure:
      return reported_fault.c_str();
    default:
      return "error";
  }
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = static_cast<int>(number_from_environment("POLICY_LOSS_EMULATION_DRIVER", kVersion));
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver < kVersion) return cudaErrorInsufficientDriver;
  *count = static_cast<int>(number_from_environment("POLICY_LOSS_EMULATION_DEVICES", 1));
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  int count = 0;
  cudaGetDeviceCount(&count);
  if (device < 0 || device >= count) return cudaErrorInvalidDevice;
  const int capability = static_cast<int>(number_from_environment("POLICY_LOSS_EMULATION_CAPABILITY", 90));
  *properties = {"emulated", device_memory(), capability / 10, capability % 10, 4, 102400, 1024};
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(mutex);
  *stream = streams.emplace_back(std::make_unique<Stream>()).get();
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(mutex);
  stream->run_until(stream->pushed());
  return last_error();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(mutex);
  stream->push([waited = *event] {
    if (waited.stream) waited.stream->run_until(waited.count);
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  const Lock lock(mutex);
  *event = events.emplace_back(std::make_unique<Event>()).get();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(mutex);
  event->stream = stream;
  event->count = stream->pushed();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return cudaEventSynchronize(event);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(mutex);
  if (event->stream) event->stream->run_until(event->count);
  return last_error();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  const Lock lock(mutex);
  *pool = pools.emplace_back(std::make_unique<int>(properties->location.id)).get();
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, int, void*) {
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** memory, size_t bytes, cudaMemPool_t pool, cudaStream_t) {
  const Lock lock(mutex);
  if (used[*pool] + bytes > device_memory()) run_everything();
  if (used[*pool] + bytes > device_memory()) return cudaErrorMemoryAllocation;
  const size_t whole = (bytes + 2 * kGuardBytes + 255) / 256 * 256;
  unsigned char* const block = static_cast<unsigned char*>(std::aligned_alloc(256, whole));
  if (!block) return cudaErrorMemoryAllocation;
  std::memset(block, kGuard, whole);
  std::memset(block + kGuardBytes, kFresh, bytes);
  *memory = block + kGuardBytes;
  allocations[reinterpret_cast<uintptr_t>(*memory)] = {bytes, *pool};
  used[*pool] += bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  enqueue(stream, [=] { give_back(memory); });
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  enqueue(stream, [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}

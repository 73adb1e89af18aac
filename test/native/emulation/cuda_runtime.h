// Emulates CUDA's header of the same name. With this header, an ordinary C++ compiler compiles the unchanged
// sources of native/cuda, and the kernels run without a GPU.
//
// The emulation is stricter than a GPU, so that it reveals mistakes:
// - A block's threads are fibers of one host thread. A thread runs until it reaches a barrier or a warp
//   collective, and continues when all other threads concerned have reached it. If a necessary barrier is
//   missing, threads read stale values. If some threads never reach a barrier, this is a fault.
// - A stream runs its work as late as events allow. So the work of different streams runs in the order of
//   submission only if events require it.
// - New memory is filled with NaN and lies between guard zones, which show writes out of bounds. With
//   AddressSanitizer, every access to a guard zone ends the process, also a plain load.
// - Addresses of memory are multiples of 16 bytes and of nothing more, though CUDA aligns to 256 bytes.
// - Copies must stay within memory that is allocated when they are made.
// - An asynchronous copy into shared memory is made only when a thread waits for it.
// - Events and kernels must be used while the device of their stream is the current one.
// - cudaGetLastError() also returns errors that a caller should have cleared, such as cudaErrorNotReady.
// - CUDA must not be used while the process ends. If it is, the exit status is 86.
// After a fault, all functions of the runtime return an error, as on a GPU. The error's message describes the
// fault.
//
// Environment variables:
//   POLICY_LOSS_EMULATION_SHUFFLE     a seed: blocks, threads and streams run in another order, and streams
//                                     and copies may run early
//   POLICY_LOSS_EMULATION_RESIDENT    a number n: n blocks of a grid run at the same time (grid.cc), and see
//                                     each other's stores late (stores.cc). If n is 1, or with
//                                     AddressSanitizer, blocks run one after another with late stores.
//   POLICY_LOSS_EMULATION_MEMORY      the memory of each device in bytes
//   POLICY_LOSS_EMULATION_DEVICES     the number of devices
//   POLICY_LOSS_EMULATION_DRIVER      the CUDA version of the driver, such as 13000, or 0 for no driver
//   POLICY_LOSS_EMULATION_CAPABILITY  the devices' compute capability, such as 80 for 8.0; the default is 90
//   POLICY_LOSS_EMULATION_POOLS       0: the devices have no memory pools
//   POLICY_LOSS_EMULATION_MAPPED      0: the devices cannot write to memory of the host
//   POLICY_LOSS_EMULATION_FAIL        a number n: the n-th function of the runtime fails, counted from when
//                                     the variable got this value. Its name is then in
//                                     POLICY_LOSS_EMULATION_FAILED.
//   POLICY_LOSS_EMULATION_COUNT       the name of a function of the runtime. The number of its calls is added
//   to
//                                     POLICY_LOSS_EMULATION_COUNTED.
//   POLICY_LOSS_EMULATION_STICKY      1: that function fails because of a kernel, so all later ones fail too
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#include "address_sanitizer.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// Each block that runs at the same time as others has a host thread of its own (grid.cc), so static variables
// of the thread can serve as its shared memory. AddressSanitizer does not check such variables. With it,
// blocks therefore run one after another, and share plain static variables.
#if ADDRESS_SANITIZER
#define __shared__ static
#else
#define __shared__ static thread_local
#endif

struct dim3 {
  unsigned x, y, z;
  explicit dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __clz(unsigned x) {
  return x == 0 ? 32 : __builtin_clz(x);
}
inline int __ffs(unsigned x) {
  return __builtin_ffs(static_cast<int>(x));
}

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorDeviceUninitialized = 201,
  cudaErrorMapBufferObjectFailed = 205,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotPermitted = 800,
  cudaErrorUnknown = 999,
};

namespace emulation {

class Stream;
class Event;
struct Pool;

// The place in the source of the barrier or warp collective at which a thread waits.
struct Site {
  const char* file = nullptr;
  int line = 0;
  bool operator==(const Site&) const = default;
};

struct Indices {
  dim3 thread, block, block_size, grid_size;
};
// The indices of the running thread and of its block.
extern Indices indices;

void wait_at_barrier(Site site);
// Exchanges values between the lanes of a warp. Waits until all lanes in the mask have called this function,
// and returns the values of all lanes, by lane.
const uint64_t* exchange(unsigned mask, uint64_t value, Site site);
inline int lane() {
  return static_cast<int>(indices.thread.x % 32);
}
// Ends the running kernel and records a fault. The arguments form its message, as in printf().
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));
// Calls fault() unless the bytes lie within one allocation and the address is a multiple of their number.
void check_access(const void* address, size_t bytes);

// Makes the stores of the running block visible to other blocks, and theirs visible to it.
void fence();
// Must be called before and after an atomic operation on these bytes.
void begin_atomic(void* address, size_t bytes);
void end_atomic(const void* address, size_t bytes);
// Loads bytes from the memory that all blocks share.
void load_shared(void* to, const void* from, size_t bytes);

// Returns what was at the address before it was set to operation(what was there).
template <class T, class Operation>
T atomically(T* at, Operation operation) {
  begin_atomic(at, sizeof *at);
  const T before = *at;
  *at = operation(before);
  end_atomic(at, sizeof *at);
  return before;
}

// Returns the dynamic shared memory of the running block.
char* launch_memory();

// The next three functions make the running thread's asynchronous copies, for cuda_pipeline_primitives.h.
// copy_later() only records a copy.
void copy_later(void* to, const void* from, size_t bytes);
// Forms a group of the recorded copies that belong to no group yet.
void end_group();
// Makes the recorded copies of all groups except the newest `last` groups.
void finish_groups_but(size_t last);

// Sets how much dynamic shared memory a launch of this kernel may use. The default is 48 KB minus the largest
// amount of static shared memory that any kernel declares.
cudaError_t permit_shared(void* kernel, size_t bytes);
// Appends a launch of a kernel to the queue of a stream. Records a fault if the launch asks for more dynamic
// shared memory than is permitted.
cudaError_t enqueue_kernel(void* kernel, size_t shared_bytes, Stream* stream, std::function<void()> work);
// Runs a kernel's blocks.
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel);

}  // namespace emulation

#define threadIdx (emulation::indices.thread)
#define blockIdx (emulation::indices.block)
#define blockDim (emulation::indices.block_size)
#define gridDim (emulation::indices.grid_size)

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulation::wait_at_barrier({file, line});
}
inline void __threadfence() {
  emulation::fence();
}
inline void __syncwarp(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulation::exchange(0xffffffffu, 0, {file, line});
}

template <class T>
T __shfl_sync(unsigned mask, T x, int from, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  const uint64_t* const of_lane = emulation::exchange(mask, bits, {file, line});
  if ((mask >> from & 1) == 0)
    emulation::fault("%s:%d: a shuffle from lane %d, which is not in the mask", file, line, from);
  std::memcpy(&x, of_lane + from, sizeof x);
  return x;
}

template <class T>
T __shfl_down_sync(unsigned mask, T x, unsigned distance, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  const int lane = emulation::lane(), from = lane + static_cast<int>(distance);
  return __shfl_sync(mask, x, from < 32 ? from : lane, file, line);
}

template <class T>
T __shfl_up_sync(unsigned mask, T x, unsigned distance, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  const int lane = emulation::lane(), from = lane - static_cast<int>(distance);
  return __shfl_sync(mask, x, from >= 0 ? from : lane, file, line);
}

inline unsigned __ballot_sync(unsigned mask, bool holds, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  const uint64_t* const of_lane = emulation::exchange(mask, holds, {file, line});
  unsigned lanes = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) != 0 && of_lane[lane] != 0) lanes |= 1u << lane;
  return lanes;
}

namespace emulation {

// Combines the values of all lanes in the mask, beginning with 0.
template <class Combine>
unsigned reduce(unsigned mask, unsigned x, Site site, Combine combine) {
  const uint64_t* const of_lane = exchange(mask, x, site);
  unsigned all = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) != 0) all = combine(all, static_cast<unsigned>(of_lane[lane]));
  return all;
}

}  // namespace emulation

inline unsigned __reduce_add_sync(unsigned mask, unsigned x, const char* file = __builtin_FILE(),
                                  int line = __builtin_LINE()) {
  return emulation::reduce(mask, x, {file, line}, [](unsigned a, unsigned b) { return a + b; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned x, const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
  return emulation::reduce(mask, x, {file, line}, [](unsigned a, unsigned b) { return a | b; });
}

template <class T>
T atomicMax(T* to, T x) {
  return emulation::atomically(to, [x](T before) { return before < x ? x : before; });
}

template <class T>
T atomicAdd(T* to, T x) {
  return emulation::atomically(to, [x](T before) { return before + x; });
}

template <class T>
T __ldcs(const T* from) {
  emulation::check_access(from, sizeof(T));
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  emulation::check_access(from, sizeof(T));
  T x;
  emulation::load_shared(&x, from, sizeof x);
  return x;
}
template <class T>
void __stcs(T* to, T x) {
  emulation::check_access(to, sizeof(T));
  *to = x;
}

using cudaStream_t = emulation::Stream*;
using cudaEvent_t = emulation::Event*;
using cudaMemPool_t = emulation::Pool*;

struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
  size_t sharedMemPerMultiprocessor, reservedSharedMemPerBlock;
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaStreamNonBlocking = 1, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaHostAllocDefault = 0, cudaHostAllocMapped = 2 };
enum { cudaMemAllocationTypePinned, cudaMemLocationTypeDevice, cudaMemPoolAttrReleaseThreshold };
struct cudaMemPoolProps {
  int allocType;
  struct {
    int type, id;
  } location;
};

cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
enum cudaDeviceAttr { cudaDevAttrCanMapHostMemory, cudaDevAttrMemoryPoolsSupported };
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties);
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, int attribute, void* value);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes);
cudaError_t cudaMallocFromPoolAsync(void** memory, size_t bytes, cudaMemPool_t pool, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream);
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaHostGetDevicePointer(void** on_device, void* memory, unsigned flags);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);

// Memory of cudaMalloc() can be shared with another process that uses the emulation; see ipc.cc.
struct cudaIpcMemHandle_t {
  char reserved[64];
};
enum { cudaIpcMemLazyEnablePeerAccess = 1 };
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory);
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void* memory);

enum cudaMemoryType {
  cudaMemoryTypeUnregistered,
  cudaMemoryTypeHost,
  cudaMemoryTypeDevice,
  cudaMemoryTypeManaged
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);

namespace emulation {

template <class... Parameters, size_t... index>
std::tuple<Parameters...> copy_arguments(void** arguments, std::index_sequence<index...>) {
  return {*static_cast<const Parameters*>(arguments[index])...};
}

}  // namespace emulation

enum { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), int, int bytes) {
  return emulation::permit_shared(reinterpret_cast<void*>(kernel), static_cast<size_t>(bytes));
}

template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  const auto copies =
      emulation::copy_arguments<Parameters...>(arguments, std::index_sequence_for<Parameters...>{});
  return emulation::enqueue_kernel(reinterpret_cast<void*>(kernel), shared_bytes, stream, [=] {
    emulation::run_grid(grid, block, shared_bytes, [&] { std::apply(kernel, copies); });
  });
}

// Emulates those functions of the CUDA runtime that native/cuda calls.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "machine.h"
#include "traffic.h"

using namespace emulation;

namespace emulation {

// A memory pool. Freed memory is given back at once, so that kernels which use it are noticed. The pool only
// counts how much of it a real pool would keep.
struct Pool {
  explicit Pool(int device) : device(device) {}
  const int device;
  size_t cached = 0;
  std::map<void*, size_t> sizes;  // of the memory that is allocated from the pool
};

}  // namespace emulation

// Replaces the handle of a stream by the stream, and returns if there is none.
#define FIND_STREAM(stream)                     \
  stream = find_stream(stream, current_device); \
  if (!stream) return set_error(cudaErrorInvalidResourceHandle)

namespace {

constexpr int kVersion = 13000;  // CUDA 13.0

// The memory pools. Like the memory itself (memory.cc), pools are never destroyed.
auto& pools = *new std::vector<std::unique_ptr<Pool>>;
int64_t used_pools = 0;

int64_t launch_count = 0, wait_count = 0;

thread_local int current_device = 0;

int driver_version() {
  return static_cast<int>(number_from_environment("POLICY_LOSS_EMULATION_DRIVER", kVersion));
}

bool has_pools() {
  return number_from_environment("POLICY_LOSS_EMULATION_POOLS", 1) != 0;
}

bool can_map() {
  return number_from_environment("POLICY_LOSS_EMULATION_MAPPED", 1) != 0;
}

cudaError_t allocate_on(int device, void** memory, size_t bytes, bool shareable) {
  *memory = makes_room(device, bytes) ? allocate(device, bytes, shareable) : nullptr;
  return set_error(*memory ? cudaSuccess : cudaErrorMemoryAllocation);
}

}  // namespace

namespace emulation {

int64_t pools_in_use() {
  return used_pools;
}

int device_count() {
  return static_cast<int>(number_from_environment("POLICY_LOSS_EMULATION_DEVICES", 1));
}

bool makes_room(int device, size_t bytes) {
  // A stream may still hold a cudaFreeAsync() that has not run. Running all streams frees that memory.
  if (!has_room(device, bytes)) run_all_streams();
  return has_room(device, bytes);
}

int64_t cached_bytes() {
  const Lock lock(mutex);
  run_all_streams();
  int64_t bytes = 0;
  for (const auto& pool : pools) bytes += static_cast<int64_t>(pool->cached);
  return bytes;
}

int64_t launches() {
  const Lock lock(mutex);
  return launch_count;
}

int64_t waits() {
  const Lock lock(mutex);
  return wait_count;
}

cudaError_t permit_shared(void* kernel, size_t bytes) {
  const Lock lock(mutex);
  if (const cudaError_t failed = enter("cudaFuncSetAttribute"); failed != cudaSuccess) return failed;
  permit(kernel, bytes);
  return cudaSuccess;
}

cudaError_t enqueue_kernel(void* kernel, size_t shared_bytes, Stream* stream, std::function<void()> work) {
  const Lock lock(mutex);
  const cudaError_t failed = enter("cudaLaunchKernel", cudaErrorLaunchOutOfResources);
  if (failed != cudaSuccess) return failed;
  if (stream->device != current_device) return set_error(cudaErrorInvalidResourceHandle);
  ++launch_count;
  check_shared(kernel, shared_bytes);
  enqueue(stream, std::move(work));
  return cudaSuccess;
}

}  // namespace emulation

cudaError_t cudaGetLastError() {
  return take_error();
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorLaunchOutOfResources:
      return "too many resources requested for launch";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorLaunchFailure:
      return message_of_fault();
    default:
      return "unknown error";
  }
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  ENTER();
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  ENTER();
  *version = driver_version();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  ENTER();
  *count = 0;
  if (driver_version() < kVersion) return set_error(cudaErrorInsufficientDriver);
  *count = device_count();
  return set_error(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  ENTER();
  if (device < 0 || device >= device_count()) return set_error(cudaErrorInvalidDevice);
  const int capability = static_cast<int>(number_from_environment("POLICY_LOSS_EMULATION_CAPABILITY", 90));
  *properties = {"emulated", device_memory(), capability / 10, capability % 10, 4, 102400, 1024};
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  ENTER();
  if (device < 0 || device >= device_count()) return set_error(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  ENTER();
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  ENTER();
  const bool holds = attribute == cudaDevAttrMemoryPoolsSupported ? has_pools() : can_map();
  *value = holds ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  ENTER();
  *stream = make_stream(current_device);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  ENTER();
  FIND_STREAM(stream);
  destroy(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ENTER();
  ++wait_count;
  FIND_STREAM(stream);
  stream->run_until(stream->pushed());
  return state_of_device();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  ENTER();
  FIND_STREAM(stream);
  stream->push([waited = event->stream, count = event->count] {
    if (waited) waited->run_until(count);
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  ENTER();
  *event = make_event(current_device);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ENTER();
  destroy(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER();
  FIND_STREAM(stream);
  if (event->device != stream->device) return set_error(cudaErrorInvalidResourceHandle);
  event->stream = stream;
  event->count = stream->pushed();
  return cudaSuccess;
}

// If shuffling is on, the device has often not reached the event yet.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  ENTER();
  static std::mt19937_64 random(3);
  if (shuffle_seed() != 0 && random() % 2 == 0) return set_error(cudaErrorNotReady);
  ++wait_count;
  if (event->stream) event->stream->run_until(event->count);
  return state_of_device();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ENTER();
  ++wait_count;
  if (event->stream) event->stream->run_until(event->count);
  return state_of_device();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  ENTER();
  *milliseconds = 0;
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  ENTER();
  if (!has_pools()) return set_error(cudaErrorInvalidValue);
  ++used_pools;
  *pool = pools.emplace_back(std::make_unique<Pool>(properties->location.id)).get();
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t) {
  ENTER();
  --used_pools;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, int, void*) {
  ENTER();
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
  ENTER();
  pool->cached = std::min(pool->cached, bytes);
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** memory, size_t bytes, cudaMemPool_t pool, cudaStream_t) {
  ENTER(cudaErrorMemoryAllocation);
  const cudaError_t error = allocate_on(pool->device, memory, bytes, false);
  if (error != cudaSuccess) return error;
  pool->cached -= std::min(pool->cached, bytes);
  pool->sizes[*memory] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  ENTER();
  FIND_STREAM(stream);
  enqueue(stream, [=] {
    for (const auto& pool : pools)
      if (const auto size = pool->sizes.extract(memory)) pool->cached += size.mapped();
    give_back(memory);
  });
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  ENTER(cudaErrorMemoryAllocation);
  return allocate_on(current_device, memory, bytes, true);
}

// Frees the memory at once, even if a stream still holds work that uses it.
cudaError_t cudaFree(void* memory) {
  ENTER();
  give_back(memory);
  return state_of_device();
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  ENTER(cudaErrorMemoryAllocation);
  *memory = allocate_pinned(bytes);
  return set_error(*memory ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaHostGetDevicePointer(void** on_device, void* memory, unsigned) {
  ENTER();
  if (!can_map()) return set_error(cudaErrorInvalidValue);
  *on_device = memory;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  ENTER();
  give_back_pinned(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  ENTER();
  FIND_STREAM(stream);
  enqueue(stream, [=] {
    if (kind != cudaMemcpyDeviceToHost) check_copy(to, bytes);
    if (kind != cudaMemcpyHostToDevice) check_copy(from, bytes);
    // Without bytes, a pointer may be null.
    if (has_fault() || bytes == 0) return;
    std::memcpy(to, from, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  ENTER();
  FIND_STREAM(stream);
  enqueue(stream, [=] {
    check_copy(memory, bytes);
    if (!has_fault()) std::memset(memory, value, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  ENTER();
  const int device = device_of(pointer);
  const cudaMemoryType type = device >= 0          ? cudaMemoryTypeDevice
                              : is_pinned(pointer) ? cudaMemoryTypeHost
                                                   : cudaMemoryTypeUnregistered;
  *attributes = {type, device};
  return cudaSuccess;
}

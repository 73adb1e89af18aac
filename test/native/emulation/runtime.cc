// Emulates those functions of the CUDA runtime that native/cuda calls.
#include <cstdlib>
#include <memory>
#include <vector>

#include "machine.h"

using namespace emulation;

namespace {

constexpr int kVersion = 13000;  // CUDA 13.0

// The memory pools. A pool only stores the index of its device. Like the memory itself (memory.cc), pools are
// never destroyed.
auto& pools = *new std::vector<std::unique_ptr<int>>;

}  // namespace

cudaError_t cudaGetLastError() {
  const Lock lock(mutex);
  return take_error();
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
      return reported_fault();
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

// Does nothing, because no emulated function needs the current device: a memory pool stores its device, and
// streams belong to no device.
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(mutex);
  *stream = make_stream();
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
  *event = make_event();
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
  // A stream may still hold a cudaFreeAsync() that has not run. Running all streams frees that memory.
  if (!has_room(*pool, bytes)) run_all_streams();
  if (!has_room(*pool, bytes)) return cudaErrorMemoryAllocation;
  *memory = allocate(*pool, bytes);
  return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
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

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const Lock lock(mutex);
  const int device = device_of(pointer);
  *attributes = {device < 0 ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice, device};
  return cudaSuccess;
}

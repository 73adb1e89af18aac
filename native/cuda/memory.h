// Owners of what the CUDA runtime hands out: streams, events, pinned host memory and device memory.
#pragma once

#include <utility>

#include "cuda/failure.h"

namespace policy_loss::cuda {

class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  ~Stream() {
    if (stream_) cudaStreamDestroy(stream_);
  }
  void create() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  ~Event() {
    if (event_) cudaEventDestroy(event_);
  }
  // `flags` are the flags of cudaEventCreateWithFlags(). Does nothing if the event exists.
  void create(unsigned flags) {
    if (!event_) CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags));
  }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(const PinnedMemory&) = delete;
  ~PinnedMemory() {
    if (data_) cudaFreeHost(data_);
  }
  // `flags` are the flags of cudaHostAlloc(). Does nothing if the memory exists.
  void create(size_t bytes, unsigned flags = cudaHostAllocDefault) {
    if (!data_) CUDA_CHECK(cudaHostAlloc(&data_, bytes, flags));
  }
  // Frees the memory. create() may be called again.
  void free() {
    if (data_) CUDA_CHECK(cudaFreeHost(data_));
    data_ = nullptr;
  }
  template <class T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

// Makes a device the current one of the calling thread, and restores the thread's own device at the end. The
// restored device gets a CUDA context if it had none, which takes memory on it. So the threads of this
// package set `keeps_device`, and their device is not restored.
inline thread_local bool keeps_device = false;
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    if (!keeps_device) CUDA_CHECK(cudaGetDevice(&before_));
    CUDA_CHECK(cudaSetDevice(device));
    if (before_ == device) before_ = -1;
  }
  CurrentDevice(const CurrentDevice&) = delete;
  ~CurrentDevice() {
    if (before_ < 0) return;
    // A call that fails has no effect, so a second one is worth a try.
    if (cudaSetDevice(before_) != cudaSuccess) cudaSetDevice(before_);
    cudaGetLastError();
  }

 private:
  int before_ = -1;
};

// Allocates and frees the memory of one device. Freeing is in stream order: memory is freed after the kernels
// that were launched before.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  ~Memory() {
    if (owns_pool_) cudaMemPoolDestroy(pool_);
  }

  // Sets the streams of kernels and of copies. Must be called first, while `device` is current. The pool that
  // keeps freed memory is that of `other`, or a new one if `other` is null. Some devices have no pools.
  void open(int device, cudaStream_t compute, cudaStream_t copy, const Memory* other) {
    compute_ = compute;
    copy_ = copy;
    if (other) {
      pool_ = other->pool_;
      return;
    }
    int has_pools = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device));
    if (!has_pools) return;
    cudaMemPoolProps pool{};
    pool.allocType = cudaMemAllocationTypePinned;
    pool.location.type = cudaMemLocationTypeDevice;
    pool.location.id = device;
    CUDA_CHECK(cudaMemPoolCreate(&pool_, &pool));
    owns_pool_ = true;
    uint64_t keep = UINT64_MAX;
    CUDA_CHECK(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
  }

  // As open(), but without a pool. Memory from a pool cannot be exported to other processes.
  void open_without_pool(cudaStream_t compute, cudaStream_t copy) {
    compute_ = compute;
    copy_ = copy;
  }

  void* allocate(int64_t bytes) {
    void* data = nullptr;
    if (pool_)
      CUDA_CHECK(cudaMallocFromPoolAsync(&data, static_cast<size_t>(bytes), pool_, compute_));
    else
      CUDA_CHECK(cudaMalloc(&data, static_cast<size_t>(bytes)));
    return data;
  }

  void release(void* data) {
    // A call that failed may have left copies that the compute stream does not wait for.
    if (__atomic_load_n(&has_loose_copies_, __ATOMIC_RELAXED)) cudaStreamSynchronize(copy_);
    if (pool_ && cudaFreeAsync(data, compute_) == cudaSuccess) return;
    cudaStreamSynchronize(compute_);
    // A call that fails has no effect, so a second one is worth a try.
    if (cudaFree(data) != cudaSuccess) cudaFree(data);
    cudaGetLastError();
  }

  // Gives memory that was freed back to the driver. The streams must have ended their work.
  void trim() {
    if (pool_) CUDA_CHECK(cudaMemPoolTrimTo(pool_, 0));
  }

  // Tells whether the copy stream may have copies that the compute stream does not wait for.
  void set_loose_copies(bool loose) { __atomic_store_n(&has_loose_copies_, loose, __ATOMIC_RELAXED); }

 private:
  cudaMemPool_t pool_ = nullptr;  // null if the device has no pools
  bool owns_pool_ = false;
  cudaStream_t compute_ = nullptr, copy_ = nullptr;
  bool has_loose_copies_ = false;
};

// Owns an array in device memory.
class Buffer {
 public:
  Buffer() = default;
  Buffer(int64_t bytes, Memory& memory) : memory_(&memory), bytes_(bytes) {
    if (bytes > 0) data_ = memory.allocate(bytes);
  }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer() {
    if (data_) memory_->release(data_);
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }
  // Makes another channel free the array, in the order of its own work. All work on the array must have
  // ended.
  void hand_over(Memory& to) { memory_ = &to; }

 private:
  void* data_ = nullptr;
  Memory* memory_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace policy_loss::cuda

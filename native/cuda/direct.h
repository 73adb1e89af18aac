// Copies between a device and page-locked host memory. The device reads and writes this memory itself, so the
// copies need no staging.
#pragma once

#include "cuda/memory.h"
#include "cuda/wait.h"

namespace policy_loss::cuda {

// Returns whether an array in host memory is page-locked. Looks up both ends, because the runtime does not
// tell where an allocation ends.
inline bool is_page_locked(const char* data, int64_t bytes) {
  for (const int64_t offset : {int64_t{0}, bytes - 1}) {
    cudaPointerAttributes found{};
    CUDA_CHECK(cudaPointerGetAttributes(&found, data + offset));
    if (found.type != cudaMemoryTypeHost) return false;
  }
  return true;
}

// The direct copies on one stream.
class DirectCopies {
 public:
  void open(cudaStream_t stream) { stream_ = stream; }

  // Starts a copy to the device. The caller of the call may change the array when wait() has returned.
  void send(char* device, const char* host, int64_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_));
    record();
  }

  // Starts a copy from the device, after the work that is already on the stream. It is complete when wait()
  // has returned.
  void receive(char* host, const char* device, int64_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_));
    record();
  }

  // Waits until the copies that were started are complete.
  void wait() {
    if (!under_way_) return;
    check(wait_for(last_), "cudaEventQuery");
    under_way_ = false;
  }

 private:
  void record() {
    last_.create(cudaEventDisableTiming | cudaEventBlockingSync);
    CUDA_CHECK(cudaEventRecord(last_, stream_));
    under_way_ = true;
  }

  cudaStream_t stream_ = nullptr;
  Event last_;
  bool under_way_ = false;
};

}  // namespace policy_loss::cuda

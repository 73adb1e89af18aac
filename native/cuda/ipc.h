// Memory that another process has exported.
#pragma once

#include <cstring>

#include "cuda/channel.h"

namespace policy_loss::cuda {

static_assert(sizeof(IpcHandle::bytes) == sizeof(cudaIpcMemHandle_t));

// The memory of other processes that one call reads. CUDA may open a handle only once in a process, so
// columns with the same handle share the opened memory.
class OpenedMemory {
 public:
  explicit OpenedMemory(Channel& channel) : channel_(channel) {}
  OpenedMemory(const OpenedMemory&) = delete;
  ~OpenedMemory() {
    if (count_ > 0) cudaStreamSynchronize(channel_.compute());  // a call that failed may still read it
    // A call that fails has no effect, so a second one is worth a try.
    for (int k = 0; k < count_; ++k)
      if (cudaIpcCloseMemHandle(memory_[k]) != cudaSuccess) cudaIpcCloseMemHandle(memory_[k]);
    cudaGetLastError();
  }

  // Returns a column's view with its address in this process. The `data` of the view is an offset if `handle`
  // is given.
  ColumnView find(const ColumnView& view, const IpcHandle& handle, int device) {
    if (!handle.given) return view;
    int k = 0;
    while (k < count_ && std::memcmp(&handles_[k], handle.bytes, sizeof handles_[k]) != 0) ++k;
    if (k == count_) open(handle, device);
    ColumnView found = view;
    found.data = static_cast<const char*>(memory_[k]) + reinterpret_cast<uintptr_t>(view.data);
    return found;
  }

 private:
  void open(const IpcHandle& handle, int device) {
    std::memcpy(&handles_[count_], handle.bytes, sizeof handles_[count_]);
    const cudaError_t error =
        cudaIpcOpenMemHandle(&memory_[count_], handles_[count_], cudaIpcMemLazyEnablePeerAccess);
    switch (error) {
      case cudaErrorInvalidValue:
      case cudaErrorInvalidResourceHandle:
      case cudaErrorDeviceUninitialized:
      case cudaErrorMapBufferObjectFailed:
      case cudaErrorNotPermitted:
        cudaGetLastError();
        throw Failure(
            Status::kBadPointer,
            "ipc: expected the handle of memory on cuda:%d that another process has exported and not "
            "freed, got one that CUDA does not open: %s",
            device, cudaGetErrorString(error));
      default:
        check(error, "cudaIpcOpenMemHandle");
    }
    ++count_;
  }

  Channel& channel_;
  int count_ = 0;
  cudaIpcMemHandle_t handles_[2 * kColumns];
  void* memory_[2 * kColumns];
};

}  // namespace policy_loss::cuda

// Fences between the work of a call and a stream of its caller.
#pragma once

#include "cuda/channel.h"

namespace policy_loss::cuda {

// Makes the kernels and copies of a call wait for the work that is on the caller's stream. The caller's
// stream needs no fence after the call, because a call returns when its work on the device is done.
class Fence {
 public:
  Fence(Channel& channel, int device, const CallerStream& caller) {
    if (!caller.given) return;
    before_.create(cudaEventDisableTiming);
    const cudaError_t recorded = cudaEventRecord(before_, reinterpret_cast<cudaStream_t>(caller.handle));
    if (recorded == cudaErrorInvalidResourceHandle || recorded == cudaErrorInvalidValue) {
      cudaGetLastError();
      throw Failure(Status::kBadPointer, "stream: expected a stream of cuda:%d, got another one", device);
    }
    check(recorded, "cudaEventRecord");
    CUDA_CHECK(cudaStreamWaitEvent(channel.compute(), before_, 0));
  }

 private:
  Event before_;
};

}  // namespace policy_loss::cuda

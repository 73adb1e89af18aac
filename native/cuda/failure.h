// Turns CUDA errors into exceptions. The functions of cuda.h catch them and return a status.
#pragma once

#include <cuda_runtime.h>

#include "cuda/cuda.h"

namespace policy_loss::cuda {

struct Failure {
  Status status;
  const char* message;
};

inline Status status_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return Status::kOutOfMemory;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
      return Status::kNoDevice;
    default:
      return Status::kFailed;
  }
}

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which the next call would otherwise report again
  throw Failure{status_of(error), cudaGetErrorString(error)};
}

// Returns whether *abort is non-zero. Another thread may change it at any time. A null pointer means that the
// call cannot be aborted.
inline bool is_aborted(const int32_t* abort) {
  return abort && __atomic_load_n(abort, __ATOMIC_RELAXED) != 0;
}

[[noreturn]] inline void end_aborted_call() {
  throw Failure{Status::kAborted, "the call was aborted"};
}

inline void check_abort(const int32_t* abort) {
  if (is_aborted(abort)) end_aborted_call();
}

}  // namespace policy_loss::cuda

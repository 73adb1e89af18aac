// Turns CUDA errors into exceptions. The functions of cuda.h catch them and return a status.
#pragma once

#include <cuda_runtime.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "cuda/cuda.h"

namespace policy_loss::cuda {

struct Failure {
  Status status;
  char message[sizeof(Problem::message)] = {};

  // The arguments after `status` form the message, as in printf().
  __attribute__((format(printf, 3, 4))) Failure(Status status, const char* format, ...) : status(status) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
  }

  // Adds text to the message. Text that does not fit is cut off.
  void add(const char* text) { std::strncat(message, text, sizeof message - std::strlen(message) - 1); }
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

// Throws a Failure if `error` is an error. `call` begins with the name of the function that returned it; what
// follows "(" is ignored.
inline void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which another user of CUDA on this thread would otherwise read
  throw Failure(status_of(error), "%.*s failed: %s", static_cast<int>(std::strcspn(call, "(")), call,
                cudaGetErrorString(error));
}

// Calls a function of the CUDA runtime, and throws a Failure that names the function if it fails.
#define CUDA_CHECK(call) ::policy_loss::cuda::check((call), #call)

// The names of the kernels that a call has launched. An error in a kernel is reported by a later function,
// and the names then tell which kernels may have caused it. Each host thread runs at most one call at a time.
struct LaunchedKernels {
  static constexpr int kMost = 16;
  const char* names[kMost];
  int count;

  void add(const char* name) {
    for (int k = 0; k < count; ++k)
      if (std::strcmp(names[k], name) == 0) return;
    if (count < kMost) names[count++] = name;
  }
};
inline thread_local LaunchedKernels launched_kernels{};

// Becomes non-zero when the process ends. All calls then end early, like aborted calls.
inline int32_t process_ends = 0;

// Returns whether the process ends or *abort is non-zero. Another thread may change *abort at any time. A
// null pointer means that the caller cannot abort the call.
inline bool is_aborted(const int32_t* abort) {
  return __atomic_load_n(&process_ends, __ATOMIC_RELAXED) != 0 ||
         (abort && __atomic_load_n(abort, __ATOMIC_RELAXED) != 0);
}

[[noreturn]] inline void end_aborted_call() {
  throw Failure(Status::kAborted, "the call was aborted");
}

inline void check_abort(const int32_t* abort) {
  if (is_aborted(abort)) end_aborted_call();
}

}  // namespace policy_loss::cuda

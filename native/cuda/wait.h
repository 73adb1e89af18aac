// Waiting for a device.
#pragma once

#include "cuda/failure.h"
#include "cuda/host.h"

namespace policy_loss::cuda {

// How long a thread polls before it sleeps, in nanoseconds. Most waits end before a thread could fall asleep.
// During a longer wait, the thread should not occupy a core.
constexpr long long kPatience = 50'000;

inline cudaError_t wait_for(cudaEvent_t event) {
  const long long patience = now() + kPatience;
  cudaError_t state;
  while ((state = cudaEventQuery(event)) == cudaErrorNotReady) {
    cudaGetLastError();  // cudaErrorNotReady is not an error, but the runtime records it as the last one
    if (now() > patience) return cudaEventSynchronize(event);
  }
  return state;
}

}  // namespace policy_loss::cuda

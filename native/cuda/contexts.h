// Finds the context of each device, and turns exceptions into the status that the functions of cuda.h return.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cuda/context.h"

namespace policy_loss::cuda {

inline void report(Problem* problem, const char* message) {
  std::snprintf(problem->message, sizeof problem->message, "%s", message);
}

// Calls body(). Returns kOk if it succeeds. If it throws, writes the message to *problem and returns the
// status that belongs to the exception.
template <class Body>
Status guarded(Problem* problem, Body body) {
  try {
    body();
    return Status::kOk;
  } catch (const Failure& failure) {
    report(problem, failure.message);
    return failure.status;
  } catch (...) {
    // Apart from Failure, body() throws only std::bad_alloc.
    report(problem, "out of memory");
    return Status::kOutOfMemory;
  }
}

// An upper limit on the number of devices; no machine has this many.
constexpr int kMostDevices = 256;

// The contexts that exist, by device. They are never destroyed, because at the end of the process CUDA may
// shut down before static objects are destroyed.
inline Mutex contexts_mutex;
inline Context* contexts[kMostDevices];

// Ends the calls in progress. The process may end in the middle of a call, and CUDA then shuts down while
// other threads still use it. The runtime registers its own function for the end of the process when it is
// first used, that is, before this one, so this one runs first.
inline void finish_calls() {
  __atomic_store_n(&process_ends, 1, __ATOMIC_RELAXED);
  contexts_mutex.lock();
  for (Context* const context : contexts)
    if (context) context->close();
}

// Returns the context of a device, or null if no call has used the device yet.
inline Context* existing_context(int device) {
  const Lock lock(contexts_mutex);
  return device >= 0 && device < kMostDevices ? contexts[device] : nullptr;
}

// Returns the context of a device. The first call for a device creates it.
inline Context& context_of(int device) {
  static int count = 0;
  const Lock lock(contexts_mutex);
  if (count == 0) {
    Problem problem;
    const DeviceCount found = count_devices(&problem);
    if (found.obstacle != Obstacle::kNone) throw Failure(Status::kNoDevice, "%s", problem.message);
    count = std::min(found.count, kMostDevices);
    std::atexit(finish_calls);
  }
  if (device < 0 || device >= count) throw Failure(Status::kNoDevice, "there is no such device");
  if (!contexts[device]) contexts[device] = new Context(device);
  return *contexts[device];
}

}  // namespace policy_loss::cuda

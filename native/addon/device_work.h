// Calls that run on the thread of a CUDA device.
#pragma once

#include <napi.h>

#include <functional>
#include <memory>
#include <vector>

#include "addon/call_queue.h"
#include "addon/dlpack.h"
#include "addon/read.h"
#include "cuda/cuda.h"

namespace policy_loss::addon {

// A call that runs on a device, and its result. Any thread can run it.
struct Work {
  cuda::Status status = cuda::Status::kOk;
  cuda::Problem problem;
  std::function<cuda::Status(const int32_t* abort, cuda::Problem*)> run;
  std::function<Napi::Value(Napi::Env)> value;
  const int32_t* caller_abort = nullptr;
  int32_t closing = 0;  // set when the calling thread ends
  int device = 0;
  CallKind kind = CallKind::kComputing;
  // Tensors that the call reads. They are released when it has ended, on the JavaScript thread, because a
  // deleter of another addon may use JavaScript.
  std::vector<TensorHandle> tensors;
  std::vector<DeviceArrayHandle> arrays;  // arrays of this addon that the call reads
};

// Returns the address in a BigInt.
void* address_in(const Napi::Value& value);
// Returns the handle in a Uint8Array, or none if the value is undefined.
cuda::IpcHandle handle_if_any(const Napi::Value& value);
// Adds the arrays of a JavaScript array to a list. Other elements are undefined.
void keep_arrays(const Napi::Value& value, std::vector<DeviceArrayHandle>* arrays);

// Runs work. If `later` is set, the thread of the device's calls runs it, and a promise of its value is
// returned. Otherwise this function waits for the device and returns the value. Throws, or rejects the
// promise with, the error of work that failed. Work that was aborted has the value -1.
Napi::Value perform(const Napi::CallbackInfo& info, std::shared_ptr<Work> work, bool later);

// Returns a handle that releases a thing on the thread of its device's calls that compute. So the JavaScript
// thread never waits for the calls in progress.
template <class T>
std::shared_ptr<T> handle_of(T* thing, int device) {
  return std::shared_ptr<T>(thing, [device](T* last) {
    const auto release = [last] { cuda::release(last); };
    try {
      CallQueue::of(device, CallKind::kComputing).post(release);
    } catch (const std::bad_alloc&) {
      release();
    }
  });
}

}  // namespace policy_loss::addon

// Runs calls on CUDA devices: at once, or on threads of the devices while JavaScript continues.
#pragma once

#include <napi.h>

#include <functional>
#include <memory>
#include <vector>

#include "addon/read.h"
#include "cuda/cuda.h"

namespace policy_loss::addon {

// Each device has one queue of calls that compute and one of uploads, so that these do not wait for each
// other.
enum class CallKind { kComputing, kUploading };

// Posts work to a queue of a device. One thread per queue runs it, one call after another, and waits for the
// device. So neither the event loop nor Node's own worker threads have to wait.
void post(int device, CallKind kind, std::function<void()> work);

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
  std::vector<DeviceArrayHandle> arrays;  // arrays of this addon that the call reads
};

// Returns the address in a BigInt.
void* address_in(const Napi::Value& value);
// Returns the handle in a Uint8Array, or none if the value is undefined.
cuda::IpcHandle handle_if_any(const Napi::Value& value);
// Returns the columns of NativeBatch.pointers, each with its code in NativeBatch.dtypes, and
// NativeBatch.handles. There are none if the batch is undefined.
cuda::ColumnsThere read_pointers(const Napi::Value& batch);
// Adds the arrays of a JavaScript array to a list. Other elements are undefined.
void keep_arrays(const Napi::Value& value, std::vector<DeviceArrayHandle>* arrays);

// Runs work on the thread of the device's calls, and returns a promise of its value. `held` is an object to
// which the call refers until then (see Instance::start()). Rejects the promise with the error of work that
// failed. Work that was aborted has the value -1.
Napi::Value perform_later(const Napi::Value& held, const std::shared_ptr<Work>& work);
// Runs work as the call's descriptor says, and returns its value or a promise of it.
Napi::Value perform(const Napi::Object& call, const std::shared_ptr<Work>& work);

// Returns a handle that releases a thing on the thread of its device's calls that compute. So the JavaScript
// thread never waits for the calls in progress.
template <class T>
std::shared_ptr<T> handle_of(T* thing, int device) {
  return std::shared_ptr<T>(thing, [device](T* last) {
    const auto release = [last] { cuda::release(last); };
    try {
      post(device, CallKind::kComputing, release);
    } catch (const std::bad_alloc&) {
      release();
    }
  });
}

}  // namespace policy_loss::addon

#include "addon/device_work.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "addon/calls.h"

namespace policy_loss::addon {
namespace {

// Queues are never destroyed. Their threads end with the process.
class CallQueue {
 public:
  CallQueue() {
    std::thread([this] { loop(); }).detach();
  }

  void post(std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(work));
    }
    wake_.notify_one();
  }

 private:
  void loop() {
    cuda::keep_current_device();
    while (true) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return !waiting_.empty(); });
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
};

Napi::Value settle(Napi::Env env, const Work& work) {
  switch (work.status) {
    case cuda::Status::kOk:
      return work.value(env);
    case cuda::Status::kAborted:
      return Napi::Number::New(env, -1);
    case cuda::Status::kOutOfMemory:
      throw coded_error(env, "ERR_OUT_OF_MEMORY", work.problem.message);
    case cuda::Status::kBadPointer:
      throw coded_error(env, "ERR_INVALID_INPUT", work.problem.message);
    default:
      throw coded_error(env, "ERR_DEVICE_UNAVAILABLE", work.problem.message);
  }
}

}  // namespace

void post(int device, CallKind kind, std::function<void()> work) {
  static std::mutex mutex;
  static auto* const queues = new std::map<std::pair<int, CallKind>, CallQueue*>;
  CallQueue* queue;
  {
    std::lock_guard lock(mutex);
    CallQueue*& found = (*queues)[{device, kind}];
    if (!found) found = new CallQueue;
    queue = found;
  }
  queue->post(std::move(work));
}

void* address_in(const Napi::Value& value) {
  bool lossless = false;
  return reinterpret_cast<void*>(value.As<Napi::BigInt>().Uint64Value(&lossless));
}

cuda::IpcHandle handle_if_any(const Napi::Value& value) {
  cuda::IpcHandle handle;
  if (value.IsUndefined()) return handle;
  handle.given = true;
  std::memcpy(handle.bytes, array_of<uint8_t>(value, sizeof handle.bytes, "a handle"), sizeof handle.bytes);
  return handle;
}

cuda::ColumnsThere read_pointers(const Napi::Value& batch) {
  cuda::ColumnsThere there;
  if (!batch.IsObject()) return there;
  const Napi::Value given = batch.As<Napi::Object>().Get("handles");
  const Napi::Value pointers = batch.As<Napi::Object>().Get("pointers");
  if (!pointers.IsArray()) return there;
  const Napi::Array dtypes = batch.As<Napi::Object>().Get("dtypes").As<Napi::Array>();
  for (uint32_t c = 0; c < std::min<uint32_t>(pointers.As<Napi::Array>().Length(), kColumns); ++c) {
    const Napi::Value pointer = pointers.As<Napi::Array>().Get(c);
    if (!pointer.IsBigInt()) continue;
    const int code = dtypes.Get(c).ToNumber().Int32Value();
    there.column[c] = view_of(batch.Env(), code);
    there.column[c].data = address_in(pointer);
    there.handle[c] =
        handle_if_any(given.IsArray() ? given.As<Napi::Array>().Get(c) : batch.Env().Undefined());
  }
  return there;
}

void keep_arrays(const Napi::Value& value, std::vector<DeviceArrayHandle>* arrays) {
  if (!value.IsArray()) return;
  const Napi::Array given = value.As<Napi::Array>();
  for (uint32_t i = 0; i < given.Length(); ++i)
    if (const Napi::Value array = given.Get(i); array.IsExternal())
      arrays->push_back(read_device_array(array));
}

Napi::Value perform_later(const Napi::Value& held, const std::shared_ptr<Work>& work) {
  auto job = std::make_unique<Instance::Job>();
  job->work = work;
  job->abort = [work] { __atomic_store_n(&work->closing, 1, __ATOMIC_RELAXED); };
  job->result = [work](Napi::Env env) { return settle(env, *work); };
  return Instance::of(held.Env()).start(held, std::move(job), [work](Instance::Job* started) {
    post(work->device, work->kind, [work, started] {
      // The JavaScript thread that made the call may have ended while the call waited in the queue.
      const bool ended = __atomic_load_n(&work->closing, __ATOMIC_RELAXED) != 0;
      work->status =
          ended ? cuda::Status::kAborted
                : work->run(work->caller_abort ? work->caller_abort : &work->closing, &work->problem);
      started->finished();
    });
  });
}

Napi::Value perform(const Napi::Object& call, const std::shared_ptr<Work>& work) {
  work->caller_abort = abort_flag_in(call);
  if (is_later(call)) return perform_later(call, work);
  work->status = work->run(work->caller_abort, &work->problem);
  return settle(call.Env(), *work);
}

}  // namespace policy_loss::addon

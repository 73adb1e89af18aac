#include "addon/device_work.h"

#include <cstring>

#include "addon/async.h"

namespace policy_loss::addon {
namespace {

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

void* address_in(const Napi::Value& value) {
  bool lossless = false;
  return reinterpret_cast<void*>(value.As<Napi::BigInt>().Uint64Value(&lossless));
}

cuda::IpcHandle handle_if_any(const Napi::Value& value) {
  cuda::IpcHandle handle;
  if (value.IsUndefined()) return handle;
  handle.given = true;
  std::memcpy(handle.bytes, elements(value, napi_uint8_array, sizeof handle.bytes, "a handle"),
              sizeof handle.bytes);
  return handle;
}

void keep_arrays(const Napi::Value& value, std::vector<DeviceArrayHandle>* arrays) {
  if (!value.IsArray()) return;
  const Napi::Array given = value.As<Napi::Array>();
  for (uint32_t i = 0; i < given.Length(); ++i)
    if (const Napi::Value array = given.Get(i); array.IsExternal())
      arrays->push_back(read_device_array(array));
}

Napi::Value perform(const Napi::CallbackInfo& info, std::shared_ptr<Work> work, bool later) {
  const Napi::Env env = info.Env();
  if (!later) {
    work->status = work->run(work->caller_abort, &work->problem);
    return settle(env, *work);
  }
  auto job = std::make_unique<Instance::Job>();
  job->work = work;
  job->abort = [work] { __atomic_store_n(&work->closing, 1, __ATOMIC_RELAXED); };
  job->result = [work](Napi::Env at) {
    work->tensors.clear();
    return settle(at, *work);
  };
  return Instance::of(env).start(env, std::move(job), hold(info), [work](Instance::Job* started) {
    CallQueue::of(work->device, work->kind).post([work, started] {
      // The JavaScript thread that made the call may have ended while the call waited in the queue.
      const bool ended = __atomic_load_n(&work->closing, __ATOMIC_RELAXED) != 0;
      work->status =
          ended ? cuda::Status::kAborted
                : work->run(work->caller_abort ? work->caller_abort : &work->closing, &work->problem);
      started->finished();
    });
  });
}

}  // namespace policy_loss::addon

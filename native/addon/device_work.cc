#include "addon/device_work.h"

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

#include "addon/calls.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace policy_loss::addon {

Instance::Instance(Napi::Env env) {
  const Napi::String name = Napi::String::New(env, "policy-loss");
  napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, this, deliver,
                                  &deliver_);
  napi_unref_threadsafe_function(env, deliver_);
  // Node runs cleanup hooks in the reverse order of their registration. So close() runs before Node destroys
  // the threadsafe function, which was created above.
  napi_add_env_cleanup_hook(env, close, this);
}

Napi::Value Instance::start(const Napi::Value& held, std::unique_ptr<Job> job,
                            const std::function<void(Job*)>& begin) {
  const Napi::Env env = held.Env();
  // This fails if Node is terminating this thread. Then the job must not begin.
  napi_value promise = nullptr;
  if (napi_create_promise(env, &job->deferred, &promise) != napi_ok) throw Napi::Error::New(env);
  if (held.IsObject()) napi_create_reference(env, held, 1, &job->held);
  if (undelivered_++ == 0) napi_ref_threadsafe_function(env, deliver_);
  Job* const started = job.release();
  started->instance = this;
  {
    std::lock_guard lock(mutex_);
    started->after = running_;
    if (running_) running_->before = started;
    running_ = started;
    ++working_;
  }
  begin(started);
  return Napi::Value(env, promise);
}

void Instance::Job::finished() {
  Instance& owner = *instance;
  {
    std::lock_guard lock(owner.mutex_);
    (before ? before->after : owner.running_) = after;
    if (after) after->before = before;
  }
  // The next line passes this job to the JavaScript thread, which may then delete it at any time. The job
  // still counts as working, so owner.deliver_ stays valid.
  napi_call_threadsafe_function(owner.deliver_, this, napi_tsfn_nonblocking);
  std::lock_guard lock(owner.mutex_);
  if (--owner.working_ == 0) owner.idle_.notify_all();
}

void Instance::keep_for_running_jobs(const std::shared_ptr<void>& memory) {
  std::lock_guard lock(mutex_);
  for (Job* job = running_; job; job = job->after) job->memory.push_back(memory);
}

void Instance::deliver(napi_env env, napi_value, void* context, void* data) {
  std::unique_ptr<Job> job(static_cast<Job*>(data));
  if (!env) return;
  Instance& instance = *static_cast<Instance*>(context);
  if (--instance.undelivered_ == 0) napi_unref_threadsafe_function(env, instance.deliver_);
  if (job->held) napi_delete_reference(env, job->held);
  try {
    napi_resolve_deferred(env, job->deferred, job->result(env));
  } catch (const Napi::Error& error) {
    napi_reject_deferred(env, job->deferred, error.Value());
  }
}

void Instance::close(void* data) {
  Instance& instance = *static_cast<Instance*>(data);
  std::unique_lock lock(instance.mutex_);
  for (const Job* job = instance.running_; job; job = job->after) job->abort();
  instance.idle_.wait(lock, [&] { return instance.working_ == 0; });
}

#if defined(_WIN32)

void stay_loaded() {
  HMODULE module;
  GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
                     reinterpret_cast<LPCSTR>(&stay_loaded), &module);
}

#else

void stay_loaded() {
  Dl_info module;
  if (dladdr(reinterpret_cast<void*>(&stay_loaded), &module))
    dlopen(module.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

#endif

}  // namespace policy_loss::addon

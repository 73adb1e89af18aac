#include "addon/async.h"

#include "addon/keep.h"

namespace policy_loss::addon {

Instance::Instance(Napi::Env env) {
  const Napi::Object map = env.Global().Get("WeakMap").As<Napi::Function>().New({});
  second_buffers_ = Napi::Persistent(map);
  get_second_ = Napi::Persistent(map.Get("get").As<Napi::Function>());
  set_second_ = Napi::Persistent(map.Get("set").As<Napi::Function>());
  const Napi::Function weak = env.Global().Get("WeakRef").As<Napi::Function>();
  weak_reference_ = Napi::Persistent(weak);
  dereference_ = Napi::Persistent(weak.Get("prototype").As<Napi::Object>().Get("deref").As<Napi::Function>());
  const Napi::String name = Napi::String::New(env, "policy-loss");
  napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, this, deliver,
                                  &deliver_);
  napi_unref_threadsafe_function(env, deliver_);
  // Node runs cleanup hooks in the reverse order of their registration. So close() runs before Node destroys
  // the threadsafe function, which was created above.
  napi_add_env_cleanup_hook(env, close, this);
}

cpu::Workspace Instance::take_workspace() {
  if (workspaces_.empty()) return {};
  cpu::Workspace taken = std::move(workspaces_.back());
  workspaces_.pop_back();
  return taken;
}

void Instance::give_back(cpu::Workspace workspace) {
  // Calls that follow each other need only one. More of them serve calls at the same time.
  constexpr size_t kMost = 64, kMostRows = 64;
  const bool is_little = workspace.row_tokens.capacity() <= kMostRows;
  if (workspaces_.empty() || (is_little && workspaces_.size() < kMost))
    workspaces_.push_back(std::move(workspace));
}

Napi::Value Instance::start(Napi::Env env, std::unique_ptr<Job> job, const Napi::Value& keep_alive,
                            const std::function<void(Job*)>& begin) {
  // This call fails if Node is terminating this thread. Then the job must not begin.
  napi_value promise = nullptr;
  if (napi_create_promise(env, &job->deferred, &promise) != napi_ok) throw Napi::Error::New(env);
  if (!keep_alive.IsUndefined()) napi_create_reference(env, keep_alive, 1, &job->keep_alive);
#if defined(__linux__)
  if (ReadForLater* const reading = ReadForLater::current()) job->memory = reading->take_memory();
#endif
  if (undelivered_++ == 0) napi_ref_threadsafe_function(env, deliver_);
  Job* const started = job.release();
  started->instance = this;
  {
    std::lock_guard lock(mutex_);
    started->after = abortable_;
    if (abortable_) abortable_->before = started;
    abortable_ = started;
    ++working_;
  }
  begin(started);
  return Napi::Value(env, promise);
}

void Instance::Job::finished() {
  Instance& owner = *instance;
  {
    std::lock_guard lock(owner.mutex_);
    (before ? before->after : owner.abortable_) = after;
    if (after) after->before = before;
  }
  // The next line passes this job to the JavaScript thread, which may then delete it at any time. The job
  // still counts as working, so owner.deliver_ stays valid.
  napi_call_threadsafe_function(owner.deliver_, this, napi_tsfn_nonblocking);
  std::lock_guard lock(owner.mutex_);
  if (--owner.working_ == 0) owner.idle_.notify_all();
}

void Instance::deliver(napi_env env, napi_value, void* context, void* data) {
  std::unique_ptr<Job> job(static_cast<Job*>(data));
  if (!env) return;
  Instance& instance = *static_cast<Instance*>(context);
  if (--instance.undelivered_ == 0) napi_unref_threadsafe_function(env, instance.deliver_);
  if (job->keep_alive) napi_delete_reference(env, job->keep_alive);
  try {
    napi_resolve_deferred(env, job->deferred, job->result(env));
  } catch (const Napi::Error& error) {
    napi_reject_deferred(env, job->deferred, error.Value());
  }
}

void Instance::close(void* data) {
  Instance& instance = *static_cast<Instance*>(data);
  std::unique_lock lock(instance.mutex_);
  for (const Job* job = instance.abortable_; job; job = job->after) job->abort();
  instance.idle_.wait(lock, [&] { return instance.working_ == 0; });
}

Napi::Value Instance::second_buffer_of(napi_value buffer) {
  const Napi::Object map = second_buffers_.Value();
  const Napi::Value weak = get_second_.Call(map, {buffer});
  const Napi::Value known = weak.IsUndefined() ? weak : dereference_.Call(weak, {});
  const napi_value made = known.IsUndefined() ? second_buffer(buffer) : nullptr;
  if (!made) return known;
  set_second_.Call(map, {buffer, weak_reference_.New({made})});
  return Napi::Value(known.Env(), made);
}

Napi::Value hold(const Napi::CallbackInfo& info) {
  Napi::Array arguments = Napi::Array::New(info.Env());
  uint32_t held = 0;
  for (uint32_t i = 0; i < info.Length(); ++i)
    if (!info[i].IsUndefined()) arguments.Set(held++, info[i]);
  const ReadForLater* const reading = ReadForLater::current();
  if (reading && !reading->kept().IsEmpty()) arguments.Set(held, reading->kept());
  return arguments;
}

Napi::Value hold_arrays(const Napi::CallbackInfo& info) {
  const ReadForLater* const reading = ReadForLater::current();
  return reading && reading->owns_all() ? info.Env().Undefined() : hold(info);
}

}  // namespace policy_loss::addon

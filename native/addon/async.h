// Calls that run on other threads while JavaScript continues. This file manages their promises, and the
// references that keep their arrays alive.
#pragma once

#include <napi.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "addon/backing_store.h"
#include "addon/recycle.h"
#include "cpu/engine.h"

namespace policy_loss::addon {

// The calls of one JavaScript thread that are in progress. The thread may be a Node worker that is terminated
// while other threads still read its arrays. close() then makes it wait for them.
class Instance {
 public:
  explicit Instance(Napi::Env env);
  static Instance& of(Napi::Env env) { return *env.GetInstanceData<Instance>(); }

#if defined(__linux__)
  // Memory for the results of calls that this JavaScript thread makes.
  Recycler recycler;
#endif

  // Memory for the evaluations of small batches that this JavaScript thread starts. They reuse it one after
  // another.
  cpu::Workspace take_workspace();
  void give_back(cpu::Workspace workspace);

  struct Job {
    Instance* instance = nullptr;
    std::shared_ptr<void> work;  // owns the call's data until the promise has settled
    std::function<void()> abort;
    // Returns the value that resolves the promise, or throws the error that rejects it. It is called on the
    // JavaScript thread that made the call.
    std::function<Napi::Value(Napi::Env)> result;
    napi_deferred deferred = nullptr;
    napi_ref keep_alive = nullptr;
    Job *before = nullptr, *after = nullptr;  // its neighbours among the jobs that can be aborted
#if defined(__linux__)
    std::vector<OwnedStore> memory;  // of the call's arrays
#endif

    // Must be called exactly once, from any thread, when the job no longer reads or writes any array.
    void finished();
  };

  // Registers a job, calls begin() to start it, and returns its promise. keep_alive is a JavaScript value
  // that keeps the job's arrays alive, or undefined.
  Napi::Value start(Napi::Env env, std::unique_ptr<Job> job, const Napi::Value& keep_alive,
                    const std::function<void(Job*)>& begin);

  // Returns a second ArrayBuffer on the memory of `buffer` (see keep.h), or undefined if that is impossible.
  // All calls in progress that use `buffer` share its second buffer.
  Napi::Value second_buffer_of(napi_value buffer);

 private:
  static void deliver(napi_env env, napi_value, void* context, void* data);
  static void close(void* instance);

  std::vector<cpu::Workspace> workspaces_;

  // A JavaScript WeakMap from each buffer to a WeakRef of its second buffer. So this map does not keep a
  // second buffer alive; only the calls in progress do.
  Napi::ObjectReference second_buffers_;
  Napi::FunctionReference get_second_, set_second_, weak_reference_, dereference_;

  napi_threadsafe_function deliver_ = nullptr;
  int undelivered_ = 0;  // jobs whose promise has not settled; used by this thread only

  std::mutex mutex_;
  std::condition_variable idle_;
  Job* abortable_ = nullptr;  // the first of the jobs that can be aborted
  int working_ = 0;           // jobs whose finished() has not returned
};

// Returns a JavaScript value that keeps a call's arguments alive. It also keeps the memory of their arrays,
// even if the caller transfers the arrays' buffers to another thread.
Napi::Value hold(const Napi::CallbackInfo& info);
// The same for a call that needs nothing of its arguments but arrays. Returns undefined if the job owns the
// memory of all of them.
Napi::Value hold_arrays(const Napi::CallbackInfo& info);

}  // namespace policy_loss::addon

// Work that goes on while JavaScript does: promises, and what keeps their arrays alive until nothing reads
// them.
#pragma once

#include <napi.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "cpu/engine.h"

namespace policy_loss::addon {

// What is under way for one JavaScript thread. A thread can end (a worker is terminated) while others still
// read its arrays; it then waits here until nothing does.
class Instance {
 public:
  explicit Instance(Napi::Env env);
  static Instance& of(Napi::Env env) { return *env.GetInstanceData<Instance>(); }

  // Of evaluations that this thread makes at once, by itself.
  cpu::Workspace workspace;

  struct Job {
    Instance* instance = nullptr;
    std::shared_ptr<void> work;  // kept until the promise has settled
    std::function<void()> abort;
    // Settles the promise, on the thread that asked: gives its value, or throws the error that it rejects
    // with.
    std::function<Napi::Value(Napi::Env)> result;
    napi_deferred deferred = nullptr;
    napi_ref keep_alive = nullptr;

    // To be called once, from any thread, when the work is done and touches no array any more.
    void finished();
  };

  // Registers a job and gives its promise; then begin is to be called. keep_alive is what holds the job's
  // arrays.
  Napi::Value start(Napi::Env env, std::unique_ptr<Job> job, const Napi::Value& keep_alive,
                    const std::function<void(Job*)>& begin);

  // A second buffer on the memory of this one, one for all calls under way: see keep.h. Undefined where there
  // can be none.
  Napi::Value second_buffer_of(napi_value buffer);

 private:
  static void deliver(napi_env env, napi_value, void* context, void* data);
  static void close(void* instance);

  // A WeakMap of JavaScript's from each buffer to a WeakRef of its second one, which only calls hold.
  Napi::ObjectReference second_buffers_;
  Napi::FunctionReference get_second_, set_second_, weak_reference_, dereference_;

  napi_threadsafe_function deliver_ = nullptr;
  int undelivered_ = 0;  // of this thread only

  std::mutex mutex_;
  std::condition_variable idle_;
  std::unordered_set<Job*> abortable_;
  int working_ = 0;  // jobs whose finished() has not returned
};

// The arguments of a call in one value, which keeps them alive, and the memory of their arrays even where
// that is transferred away.
Napi::Value hold(const Napi::CallbackInfo& info);

}  // namespace policy_loss::addon

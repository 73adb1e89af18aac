// Work that runs while JavaScript continues: its promises, and the references that keep its arrays alive.
#pragma once

#include <napi.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "cpu/engine.h"

namespace policy_loss::addon {

// The calls in progress of one JavaScript thread. If the thread ends while other threads read its arrays,
// because a worker is terminated, it waits here until they are done.
class Instance {
 public:
  explicit Instance(Napi::Env env);
  static Instance& of(Napi::Env env) { return *env.GetInstanceData<Instance>(); }

  // The memory of evaluations that this thread computes itself.
  cpu::Workspace workspace;

  struct Job {
    Instance* instance = nullptr;
    std::shared_ptr<void> work;  // kept until the promise has settled
    std::function<void()> abort;
    // Returns the value that resolves the promise, or throws the error that rejects it. Runs on the thread
    // that made the call.
    std::function<Napi::Value(Napi::Env)> result;
    napi_deferred deferred = nullptr;
    napi_ref keep_alive = nullptr;

    // Must be called once, from any thread, when the work no longer touches any array.
    void finished();
  };

  // Registers a job, calls begin() and returns the job's promise. keep_alive holds the job's arrays.
  Napi::Value start(Napi::Env env, std::unique_ptr<Job> job, const Napi::Value& keep_alive,
                    const std::function<void(Job*)>& begin);

  // Returns a second buffer on the memory of this one, which all calls in progress share; see keep.h. Returns
  // undefined if that is impossible.
  Napi::Value second_buffer_of(napi_value buffer);

 private:
  static void deliver(napi_env env, napi_value, void* context, void* data);
  static void close(void* instance);

  // A JavaScript WeakMap from each buffer to a WeakRef of its second buffer. Only calls hold the second
  // buffer.
  Napi::ObjectReference second_buffers_;
  Napi::FunctionReference get_second_, set_second_, weak_reference_, dereference_;

  napi_threadsafe_function deliver_ = nullptr;
  int undelivered_ = 0;  // of this thread only

  std::mutex mutex_;
  std::condition_variable idle_;
  std::unordered_set<Job*> abortable_;
  int working_ = 0;  // jobs whose finished() has not returned
};

// Returns one value that keeps the arguments of a call alive. It also keeps the memory of their arrays, even
// if their buffers are transferred.
Napi::Value hold(const Napi::CallbackInfo& info);

}  // namespace policy_loss::addon

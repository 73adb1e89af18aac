// Runs calls of JavaScript: at once, or on other threads while JavaScript continues. The descriptor of a call
// (see NativeCompute in binding.d.ts) says which.
#pragma once

#include <napi.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "addon/read.h"
#include "cpu/engine.h"

namespace policy_loss::addon {

// The calls of one JavaScript thread that are in progress. The thread may be a Node worker that is terminated
// while other threads still read its arrays. close() then makes it wait for them.
class Instance {
 public:
  explicit Instance(Napi::Env env);
  static Instance& of(Napi::Env env) { return *env.GetInstanceData<Instance>(); }

  struct Job {
    Instance* instance = nullptr;
    std::shared_ptr<void> work;  // owns the call's data until the promise has settled
    std::function<void()> abort;
    // Returns the value that resolves the promise, or throws the error that rejects it. It is called on the
    // JavaScript thread that made the call.
    std::function<Napi::Value(Napi::Env)> result;
    napi_deferred deferred = nullptr;
    napi_ref held = nullptr;
    std::vector<std::shared_ptr<void>> memory;  // what keep_for_running_jobs() was given
    Job *before = nullptr, *after = nullptr;    // its neighbours among the jobs that are running

    // Must be called exactly once, from any thread, when the job no longer reads or writes any array.
    void finished();
  };

  // Registers a job, calls begin() to start it, and returns its promise. The job refers to `held` until the
  // promise settles: to the descriptor that has the call's arrays, or to its only array. It is undefined if
  // the call has none.
  Napi::Value start(const Napi::Value& held, std::unique_ptr<Job> job,
                    const std::function<void(Job*)>& begin);

  // Keeps memory that the jobs may be using until those that are running now have finished.
  void keep_for_running_jobs(const std::shared_ptr<void>& memory);

 private:
  static void deliver(napi_env env, napi_value, void* context, void* data);
  static void close(void* instance);

  napi_threadsafe_function deliver_ = nullptr;
  int undelivered_ = 0;  // jobs whose promise has not settled; used by this thread only

  std::mutex mutex_;
  std::condition_variable idle_;
  Job* running_ = nullptr;  // the first of the jobs that are running
  int working_ = 0;         // jobs whose finished() has not returned
};

// Keeps the addon loaded until the process ends, because the addon's threads run until then.
void stay_loaded();

// Returns whether a call's descriptor asks for a promise.
inline bool is_later(const Napi::Object& call) {
  return call.Get("later").ToBoolean();
}

inline const FunctionHandle& function_of(const Napi::Value& value) {
  return *value.As<Napi::External<FunctionHandle>>().Data();
}

// A task of the CPU engine that tells its job, if it has one, when it is done.
template <class Task>
class Reporting : public Task {
 public:
  using Task::Task;
  Instance::Job* job = nullptr;
  void done() override {
    Task::done();
    if (job) job->finished();
  }
};

// Runs a task of the CPU engine as the call's descriptor says, and returns the number value(*task) or a
// promise of it. An aborted task has the value -1.
template <class Task, class Value>
Napi::Value run(const Napi::Object& call, const std::shared_ptr<Reporting<Task>>& task, Value value) {
  const auto result = [raw = task.get(), value](Napi::Env env) -> Napi::Value {
    if (raw->out_of_memory()) throw coded_error(env, "ERR_OUT_OF_MEMORY", "out of memory");
    return Napi::Number::New(env, raw->aborted() ? -1.0 : static_cast<double>(value(*raw)));
  };
  if (!is_later(call)) {
    // The pool's threads would come too late for a small task.
    if (task->is_small())
      cpu::run_here(*task);
    else
      cpu::Pool::shared().run(task);
    return result(call.Env());
  }
  task->set_abort_flag(abort_flag_in(call));
  auto job = std::make_unique<Instance::Job>();
  task->job = job.get();
  job->work = task;
  job->result = result;
  job->abort = [raw = task.get()] { raw->abort(); };
  return Instance::of(call.Env()).start(call, std::move(job), [task](Instance::Job*) {
    cpu::Pool::shared().submit(task);
  });
}

}  // namespace policy_loss::addon

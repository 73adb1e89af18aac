// Runs the CPU engine's tasks for JavaScript. A task either runs while the caller waits, or it runs on the
// pool's threads and the caller gets a promise for the result.
#pragma once

#include <napi.h>

#include <memory>

#include "addon/async.h"
#include "addon/read.h"
#include "cpu/advantages.h"
#include "cpu/engine.h"
#include "cpu/group.h"
#include "cpu/logits.h"

namespace policy_loss::addon {

inline const FunctionHandle& function_of(const Napi::Value& value) {
  return *value.As<Napi::External<FunctionHandle>>().Data();
}

// A task that tells its job when it is done. The job then settles the promise.
template <class Task>
class Reporting : public Task {
 public:
  using Task::Task;
  Instance::Job* job = nullptr;
  void done() override {
    Task::done();
    job->finished();
  }
};

inline void require_memory(Napi::Env env, const cpu::Task& task) {
  if (task.out_of_memory()) throw coded_error(env, "ERR_OUT_OF_MEMORY", "out of memory");
}

// Each of these functions returns the result of a finished task for JavaScript, usually a number, or throws
// an error.
inline double result_of(Napi::Env env, const cpu::Evaluation& task) {
  require_memory(env, task);
  return task.aborted() ? -1.0 : static_cast<double>(task.outputs().present);
}
inline Napi::Value result_of(Napi::Env env, const cpu::EvaluationGroup& task) {
  Napi::Array results = Napi::Array::New(env, task.size());
  for (size_t i = 0; i < task.size(); ++i) results.Set(static_cast<uint32_t>(i), result_of(env, task[i]));
  return results;
}
inline double result_of(Napi::Env env, const cpu::KlEvaluation& task) {
  require_memory(env, task);
  return task.mean_kl();
}
inline double result_of(Napi::Env env, const cpu::AdvantageEvaluation& task) {
  require_memory(env, task);
  if (task.aborted()) return -1.0;
  return static_cast<double>(task.not_finite().input);
}
inline double result_of_logits(Napi::Env env, const cpu::Task& task) {
  require_memory(env, task);
  return task.aborted() ? -1.0 : 0.0;
}
inline double result_of(Napi::Env env, const cpu::LogitsEvaluation& task) {
  return result_of_logits(env, task);
}
inline double result_of(Napi::Env env, const cpu::LogitsGradient& task) {
  return result_of_logits(env, task);
}

// Runs a task and returns its result. A large task runs on the pool's threads as well as on this thread.
template <class Task>
Napi::Value run_now(Napi::Env env, const std::shared_ptr<Task>& task) {
  if (task->is_small())
    cpu::run_here(*task);
  else
    cpu::Pool::shared().run(task);
  return Napi::Number::New(env, result_of(env, *task));
}

// Starts a task on the pool's threads. Returns a promise, which will be resolved with result(env, task).
// `held` is what hold() or hold_arrays() returned.
template <class Task, class Result>
Napi::Value run_later(const Napi::Value& held, const std::shared_ptr<Reporting<Task>>& task, Result result) {
  auto job = std::make_unique<Instance::Job>();
  task->job = job.get();
  job->work = task;
  job->result = [raw = task.get(), result](Napi::Env env) {
    return Napi::Value::From(env, result(env, *raw));
  };
  job->abort = [raw = task.get()] { raw->abort(); };
  const Napi::Env env = held.Env();
  return Instance::of(env).start(env, std::move(job), held,
                                 [task](Instance::Job*) { cpu::Pool::shared().submit(task); });
}
template <class Task>
Napi::Value run_later(const Napi::Value& held, const std::shared_ptr<Reporting<Task>>& task) {
  return run_later(held, task, [](Napi::Env env, const Task& finished) { return result_of(env, finished); });
}

}  // namespace policy_loss::addon

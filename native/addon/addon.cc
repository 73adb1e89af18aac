// The N-API face of the engines: JavaScript values to views, asynchronous work, errors. No arithmetic.
//
// binding.d.ts at the top of the repository is this file's contract. lib/ has checked what it passes in and
// worded the errors for people; the checks here only keep memory safe from a caller that has not.
#include <napi.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <unordered_set>

#include "cpu/engine.h"
#include "loss/sapo.h"

namespace policy_loss {
namespace {

using FunctionHandle = std::shared_ptr<const cpu::PreparedFunction>;

[[noreturn]] void refuse(Napi::Env env, const std::string& what) {
  throw Napi::TypeError::New(env, what);
}

// A loss, estimator or aggregation by its name.
template <class Names, class NameOf>
int index_of(Napi::Env env, const Names& names, const std::string& wanted, const char* what, NameOf name_of) {
  int index = 0;
  for (const auto& entry : names) {
    if (wanted == name_of(entry)) return index;
    ++index;
  }
  refuse(env, std::string("unknown ") + what + ": " + wanted);
}

Aggregation read_aggregation(const Napi::Value& value) {
  return static_cast<Aggregation>(index_of(value.Env(), kAggregationNames, value.ToString().Utf8Value(),
                                           "aggregation",
                                           [](const char* name) { return std::string(name); }));
}

double read_option(const LossInfo::Option& option, const Napi::Value& value) {
  const Napi::Env env = value.Env();
  if (option.choices) {
    const std::string word = value.ToString().Utf8Value();
    for (int i = 0; option.choices[i]; ++i)
      if (word == option.choices[i]) return i;
    refuse(env, std::string(option.name) + " cannot be " + word);
  }
  if (value.IsBoolean()) return value.As<Napi::Boolean>().Value() ? 1.0 : 0.0;
  if (!value.IsNumber()) refuse(env, std::string(option.name) + " must be a number");
  return value.As<Napi::Number>().DoubleValue();
}

Function read_function(const Napi::Object& spec) {
  const Napi::Env env = spec.Env();
  Function function;
  const Napi::Value policy = spec.Get("policyLoss");
  if (policy.IsObject()) {
    const Napi::Object object = policy.As<Napi::Object>();
    function.loss = index_of(env, losses(), object.Get("name").ToString().Utf8Value(), "loss",
                             [](const LossInfo& info) { return info.name; });
    const Napi::Object options = object.Get("options").As<Napi::Object>();
    for (const LossInfo::Option& option : losses()[function.loss].options)
      function.options.push_back(read_option(option, options.Get(option.name)));
    function.loss_aggregation[0] = read_aggregation(object.Get("aggregation"));
    const Napi::Value expert = object.Get("expertAggregation");
    function.loss_aggregation[1] =
        expert.IsString() ? read_aggregation(expert) : function.loss_aggregation[0];
  }
  const Napi::Value kl = spec.Get("kl");
  if (kl.IsObject()) {
    const Napi::Object object = kl.As<Napi::Object>();
    function.kl = index_of(env, kl_estimators(), object.Get("name").ToString().Utf8Value(), "KL estimator",
                           [](const KlInfo& info) { return info.name; });
    function.kl_aggregation = read_aggregation(object.Get("aggregation"));
  }
  const Napi::Value entropy = spec.Get("entropy");
  if (entropy.IsObject()) {
    const Napi::Object object = entropy.As<Napi::Object>();
    function.entropy = true;
    function.entropy_of_usual_rows_only = object.Get("usualRowsOnly").ToBoolean();
    function.entropy_aggregation = read_aggregation(object.Get("aggregation"));
  }
  return function;
}

// The elements of a typed array, after a look at their type and number.
template <class T>
T* elements(const Napi::Value& value, napi_typedarray_type type, int64_t length, const char* what) {
  const Napi::Env env = value.Env();
  napi_typedarray_type found;
  size_t found_length = 0;
  void* data = nullptr;
  if (!value.IsTypedArray() ||
      napi_get_typedarray_info(env, value, &found, &found_length, &data, nullptr, nullptr) != napi_ok ||
      found != type || static_cast<int64_t>(found_length) != length)
    refuse(env, std::string(what) + " is not the array it should be");
  return static_cast<T*>(data);
}

BatchView read_batch(const Napi::Object& object) {
  const Napi::Env env = object.Env();
  BatchView batch;
  Layout& layout = batch.layout;
  layout.rows = object.Get("rows").ToNumber().Int64Value();
  layout.columns = object.Get("columns").ToNumber().Int64Value();
  if (layout.rows < 0 || layout.columns < 0) refuse(env, "a shape cannot be negative");
  const Napi::Value offsets = object.Get("offsets");
  if (!offsets.IsUndefined()) {
    layout.offsets = elements<int32_t>(offsets, napi_int32_array, layout.rows + 1, "offsets");
    if (layout.offsets[0] != 0) refuse(env, "offsets begin with 0");
    for (int64_t row = 0; row < layout.rows; ++row)
      if (layout.length(row) < 0 || layout.length(row) > layout.columns) refuse(env, "offsets decrease");
  }
  const int64_t tokens = layout.tokens();
  const Napi::Array data = object.Get("data").As<Napi::Array>();
  const Napi::Array dtypes = object.Get("dtypes").As<Napi::Array>();
  for (uint32_t i = 0; i < static_cast<uint32_t>(kColumns); ++i) {
    const Napi::Value column = data[i];
    if (column.IsUndefined()) continue;
    ColumnView& view = batch.column[i];
    const Napi::Value code = dtypes[i];
    const int32_t dtype = code.ToNumber().Int32Value();
    view.dtype = static_cast<DType>(dtype & 3);
    view.per_row = (dtype & 4) != 0;
    const int64_t length = view.per_row ? layout.rows : tokens;
    view.data =
        view.dtype == DType::kFloat32
            ? static_cast<const void*>(elements<float>(column, napi_float32_array, length, "a column"))
            : elements<uint16_t>(column, napi_uint16_array, length, "a column");
  }
  const Napi::Value mask = object.Get("mask");
  if (!mask.IsUndefined()) batch.mask = elements<uint8_t>(mask, napi_uint8_array, tokens, "mask");
  const Napi::Value expert = object.Get("expert");
  if (!expert.IsUndefined())
    batch.expert = elements<uint8_t>(expert, napi_uint8_array, layout.rows, "expert");
  return batch;
}

// The arguments of evaluate and evaluateSync: a function, a batch, and a call.
struct Call {
  FunctionHandle function;
  BatchView batch;
  Coefficients coefficients;
  Outputs outputs;
  const int32_t* abort = nullptr;
};

double number_or_zero(const Napi::Value& value) {
  return value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : 0.0;
}

Call read_call(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  Call call;
  call.function = *info[0].As<Napi::External<FunctionHandle>>().Data();
  call.batch = read_batch(info[1].As<Napi::Object>());
  const Napi::Object object = info[2].As<Napi::Object>();
  const int64_t tokens = call.batch.layout.tokens();

  const unsigned needed = columns_of(call.function->function());
  for (int i = 0; i < kColumns; ++i)
    if ((needed & (1u << i)) != 0 && !call.batch.column[i].data && tokens > 0)
      refuse(env, "a column is missing");
  if (!call.batch.mask && tokens > 0) refuse(env, "mask is missing");

  call.coefficients.mu = number_or_zero(object.Get("mu"));
  call.coefficients.kl = number_or_zero(object.Get("klCoef"));
  call.coefficients.entropy = number_or_zero(object.Get("entropyCoef"));
  const int64_t values = static_cast<int64_t>(value_names(call.function->function()).size());
  call.outputs.values = elements<double>(object.Get("values"), napi_float64_array, values, "values");
  const Napi::Value grad = object.Get("grad");
  if (!grad.IsUndefined()) call.outputs.grad = elements<float>(grad, napi_float32_array, tokens, "grad");
  const Napi::Value grad_entropy = object.Get("gradEntropy");
  if (!grad_entropy.IsUndefined())
    call.outputs.grad_entropy = elements<float>(grad_entropy, napi_float32_array, tokens, "gradEntropy");
  const Napi::Value abort = object.Get("abort");
  if (!abort.IsUndefined()) call.abort = elements<int32_t>(abort, napi_int32_array, 1, "abort");
  return call;
}

// What is under way for one JavaScript thread. A thread can end (a worker is terminated) while the pool still
// reads its arrays; it then waits here until nothing does.
class Instance {
 public:
  explicit Instance(Napi::Env env);
  static Instance& of(Napi::Env env) { return *env.GetInstanceData<Instance>(); }

  struct Job;
  // Starts the work and gives the promise of its result.
  Napi::Value start(Napi::Env env, std::unique_ptr<Job> job, const Napi::Value& keep_alive);
  void finished(Job* job);

 private:
  static void deliver(napi_env env, napi_value, void* context, void* data);
  static void close(void* instance);

  napi_threadsafe_function deliver_ = nullptr;
  int undelivered_ = 0;  // of this thread only

  std::mutex mutex_;
  std::condition_variable idle_;
  std::unordered_set<Job*> working_;  // those that the pool has
};

struct Instance::Job {
  Instance* instance = nullptr;
  std::shared_ptr<cpu::Task> task;
  std::function<double()> result;
  std::function<void()> abort;
  napi_deferred deferred = nullptr;
  napi_ref keep_alive = nullptr;
};

// A task that reports back to the thread that asked for it.
template <class Task>
class Reporting : public Task {
 public:
  using Task::Task;
  Instance::Job* job = nullptr;
  void done() override {
    Task::done();
    job->instance->finished(job);
  }
};

double result_of(const cpu::Evaluation& task) {
  return task.aborted() ? -1.0 : task.outputs().present;
}
double result_of(const cpu::KlEvaluation& task) {
  return task.mean_kl();
}

// Runs a task at once, on this thread and the pool's.
template <class Task>
Napi::Value run_now(Napi::Env env, const std::shared_ptr<Task>& task) {
  if (task->is_small())
    cpu::run_here(*task);
  else
    cpu::Pool::shared().run(task);
  return Napi::Number::New(env, result_of(*task));
}

// Starts a task on the pool's threads; gives a promise. The arguments that hold its arrays are kept alive.
template <class Task>
Napi::Value run_later(const Napi::CallbackInfo& info, const std::shared_ptr<Reporting<Task>>& task) {
  const Napi::Env env = info.Env();
  auto job = std::make_unique<Instance::Job>();
  task->job = job.get();
  job->instance = &Instance::of(env);
  job->task = task;
  job->result = [raw = task.get()] { return result_of(*raw); };
  job->abort = [raw = task.get()] { raw->abort(); };
  Napi::Array arguments = Napi::Array::New(env, info.Length());
  for (uint32_t i = 0; i < info.Length(); ++i) arguments.Set(i, info[i]);
  return Instance::of(env).start(env, std::move(job), arguments);
}

Instance::Instance(Napi::Env env) {
  const Napi::String name = Napi::String::New(env, "policy-loss");
  napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, this, deliver,
                                  &deliver_);
  napi_unref_threadsafe_function(env, deliver_);
  // After the function's own hook, hence run before it.
  napi_add_env_cleanup_hook(env, close, this);
}

Napi::Value Instance::start(Napi::Env env, std::unique_ptr<Job> job, const Napi::Value& keep_alive) {
  napi_value promise;
  napi_create_promise(env, &job->deferred, &promise);
  napi_create_reference(env, keep_alive, 1, &job->keep_alive);
  if (undelivered_++ == 0) napi_ref_threadsafe_function(env, deliver_);
  Job* const started = job.release();
  {
    std::lock_guard lock(mutex_);
    working_.insert(started);
  }
  cpu::Pool::shared().submit(started->task);
  return Napi::Value(env, promise);
}

void Instance::finished(Job* job) {
  // Still counted as working, so the function that delivers cannot be gone yet.
  napi_call_threadsafe_function(deliver_, job, napi_tsfn_nonblocking);
  std::lock_guard lock(mutex_);
  working_.erase(job);
  if (working_.empty()) idle_.notify_all();
}

void Instance::deliver(napi_env env, napi_value, void* context, void* data) {
  std::unique_ptr<Job> job(static_cast<Job*>(data));
  if (!env) return;
  Instance& instance = *static_cast<Instance*>(context);
  if (--instance.undelivered_ == 0) napi_unref_threadsafe_function(env, instance.deliver_);
  napi_delete_reference(env, job->keep_alive);
  napi_value result;
  napi_create_double(env, job->result(), &result);
  napi_resolve_deferred(env, job->deferred, result);
}

void Instance::close(void* data) {
  Instance& instance = *static_cast<Instance*>(data);
  std::unique_lock lock(instance.mutex_);
  for (Job* job : instance.working_) job->abort();
  instance.idle_.wait(lock, [&] { return instance.working_.empty(); });
}

Napi::Value create_function(const Napi::CallbackInfo& info) {
  Function function = read_function(info[0].As<Napi::Object>());
  auto* handle = new FunctionHandle(std::make_shared<cpu::PreparedFunction>(std::move(function)));
  return Napi::External<FunctionHandle>::New(info.Env(), handle,
                                             [](Napi::Env, FunctionHandle* h) { delete h; });
}

Napi::Value function_value_names(const Napi::CallbackInfo& info) {
  const FunctionHandle& function = *info[0].As<Napi::External<FunctionHandle>>().Data();
  Napi::Array names = Napi::Array::New(info.Env());
  for (const std::string& name : value_names(function->function())) names.Set(names.Length(), name);
  return names;
}

// Runs what a JavaScript call asks for; memory that runs out becomes an error with the code of api.md.
template <class Body>
Napi::Value guarded(const Napi::CallbackInfo& info, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    Napi::Error error = Napi::Error::New(info.Env(), "out of memory");
    error.Set("code", Napi::String::New(info.Env(), "ERR_OUT_OF_MEMORY"));
    throw error;
  }
}

Napi::Value evaluate_sync(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    const Call call = read_call(info);
    return run_now(info.Env(), std::make_shared<cpu::Evaluation>(call.function, call.batch, call.coefficients,
                                                                 call.outputs));
  });
}

Napi::Value evaluate(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    const Call call = read_call(info);
    auto task = std::make_shared<Reporting<cpu::Evaluation>>(call.function, call.batch, call.coefficients,
                                                             call.outputs);
    task->set_abort_flag(call.abort);
    return run_later(info, task);
  });
}

// The arguments of kl and klSync: estimator, batch, out, base, scale.
template <class Task>
std::shared_ptr<Task> read_kl(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const int estimator = index_of(env, kl_estimators(), info[0].ToString().Utf8Value(), "KL estimator",
                                 [](const KlInfo& entry) { return entry.name; });
  const BatchView batch = read_batch(info[1].As<Napi::Object>());
  const int64_t tokens = batch.layout.tokens();
  float* out = elements<float>(info[2], napi_float32_array, tokens, "out");
  const float* base =
      info[3].IsUndefined() ? nullptr : elements<float>(info[3], napi_float32_array, tokens, "base");
  const bool needs_old = kl_estimators()[estimator].reads_old_logprob;
  if (tokens > 0 && (!batch.column[kLogprob].data || !batch.column[kRefLogprob].data ||
                     (needs_old && !batch.column[kOldLogprob].data) || (base && !batch.mask)))
    refuse(env, "a column is missing");
  return std::make_shared<Task>(estimator, batch, base, number_or_zero(info[4]), out);
}

Napi::Value kl_sync(const Napi::CallbackInfo& info) {
  return guarded(info, [&] { return run_now(info.Env(), read_kl<cpu::KlEvaluation>(info)); });
}

Napi::Value kl(const Napi::CallbackInfo& info) {
  return guarded(info, [&] { return run_later(info, read_kl<Reporting<cpu::KlEvaluation>>(info)); });
}

// softGate(tauPos, tauNeg, ratio, advantages, out)
Napi::Value soft_gate(const Napi::CallbackInfo& info) {
  const Sapo sapo({info[0].ToNumber().DoubleValue(), info[1].ToNumber().DoubleValue(), 0.0});
  const int64_t n = static_cast<int64_t>(info[2].As<Napi::TypedArray>().ElementLength());
  const float* ratio = elements<float>(info[2], napi_float32_array, n, "ratio");
  const float* advantages = elements<float>(info[3], napi_float32_array, n, "advantages");
  float* out = elements<float>(info[4], napi_float32_array, n, "out");
  for (int64_t i = 0; i < n; ++i) out[i] = sapo.gate(ratio[i], advantages[i] > 0.0f).value;
  return info.Env().Undefined();
}

Napi::Value set_threads(const Napi::CallbackInfo& info) {
  cpu::Pool::shared().set_threads(info[0].ToNumber().Int32Value());
  return info.Env().Undefined();
}

Napi::Value cpu_device(const Napi::CallbackInfo& info) {
  Napi::Object device = Napi::Object::New(info.Env());
  device.Set("cores", std::thread::hardware_concurrency());
  device.Set("threads", cpu::Pool::shared().threads());
  device.Set("isa", cpu::target()->name);
  return device;
}

Napi::Object init(Napi::Env env, Napi::Object exports) {
  if (!cpu::target())
    throw Napi::Error::New(env,
                           "POLICY_LOSS_ISA names an instruction set that this machine or build has not");
  env.SetInstanceData(new Instance(env));
  exports.Set("createFunction", Napi::Function::New(env, create_function));
  exports.Set("valueNames", Napi::Function::New(env, function_value_names));
  exports.Set("evaluate", Napi::Function::New(env, evaluate));
  exports.Set("evaluateSync", Napi::Function::New(env, evaluate_sync));
  exports.Set("kl", Napi::Function::New(env, kl));
  exports.Set("klSync", Napi::Function::New(env, kl_sync));
  exports.Set("softGate", Napi::Function::New(env, soft_gate));
  exports.Set("setThreads", Napi::Function::New(env, set_threads));
  exports.Set("cpu", Napi::Function::New(env, cpu_device));
  return exports;
}

NODE_API_MODULE(policy_loss, init)

}  // namespace
}  // namespace policy_loss

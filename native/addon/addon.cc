// The functions that the native module exports to JavaScript. The file binding.d.ts, at the top of the
// repository, declares and describes them. This folder only converts arguments and starts calls. The engines
// compute the results.
#include <napi.h>

#include <memory>
#include <string>
#include <thread>

#include "addon/bench.h"
#include "addon/devices.h"
#include "addon/dlpack.h"
#include "addon/keep.h"
#include "addon/logits.h"
#include "addon/pinned.h"
#include "addon/reuse.h"
#include "addon/tasks.h"
#include "loss/sapo.h"

namespace policy_loss::addon {
namespace {

// Evaluates a batch in host memory on the CPU, and returns the result. A small batch is computed by the
// calling thread.
Napi::Value evaluate_now(Napi::Env env, const FunctionHandle& function, const BatchView& batch,
                         const Call& call) {
  if (!cpu::is_small(batch.layout))
    return run_now(env, std::make_shared<cpu::Evaluation>(function, batch, call.coefficients, call.normalizer,
                                                          call.outputs));
  Instance& instance = Instance::of(env);
  cpu::Evaluation evaluation(function, batch, call.coefficients, call.normalizer, call.outputs,
                             instance.take_workspace());
  cpu::run_here(evaluation);
  instance.give_back(evaluation.take_workspace());
  return Napi::Number::New(env, result_of(env, evaluation));
}

// Evaluates a batch in host memory on the pool's threads, and returns a promise.
Napi::Value evaluate_later(const Napi::Value& held, const FunctionHandle& function, const BatchView& batch,
                           const Call& call, bool quick) {
  Instance& instance = Instance::of(held.Env());
  const bool is_small = cpu::is_small(batch.layout);
  // malloc would merge and split blocks of this size for each call.
  using Task = Reporting<cpu::Evaluation>;
  auto task = std::allocate_shared<Task>(ReusingAllocator<Task>(), function, batch, call.coefficients,
                                         call.normalizer, call.outputs,
                                         is_small ? instance.take_workspace() : cpu::Workspace{});
  task->set_abort_flag(call.abort);
  return run_later(held, task, [&instance, is_small](Napi::Env env, cpu::Evaluation& finished) {
    if (is_small) instance.give_back(finished.take_workspace());
    return result_of(env, finished);
  });
}

Napi::Value create_function(const Napi::CallbackInfo& info) {
  Function function = read_function(info[0].As<Napi::Object>());
  return owned<FunctionHandle>(info.Env(), std::make_shared<PreparedFunction>(std::move(function)));
}

Napi::Value function_value_names(const Napi::CallbackInfo& info) {
  Napi::Array names = Napi::Array::New(info.Env());
  for (const std::string& name : value_names(function_of(info[0])->function()))
    names.Set(names.Length(), name);
  return names;
}

Napi::Value interpreted_instructions(const Napi::CallbackInfo& info) {
  const program::Program* const program = function_of(info[0])->program(info[1].ToBoolean());
  return Napi::Number::New(info.Env(), program ? program->view().interpreted : 0);
}

Napi::Value has_gradient_per_token(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), gradient_is_per_token(*function_of(info[0])));
}

// The arguments of evaluate().
struct Evaluated {
  const FunctionHandle& function;
  Place place;
  Call call;
};

Evaluated read_evaluation(Napi::Env env, const Napi::Value& function_value, const Napi::Value& batch,
                          const Napi::Object& object, const Napi::Value& device) {
  const FunctionHandle& function = function_of(function_value);
  unsigned columns = columns_of(function->function());
  if (object.Get("advantage").IsObject()) columns &= ~reads(kAdvantages);
  if (batch.IsExternal() && !object.Get("weights").IsUndefined()) columns &= ~reads(kWeights);
  const Place place = read_place(batch, device, columns, true);
  if (place.rows() > 0) check_row_columns(env, *function, place.row_columns());
  const Call call = read_call(function->function(), place.rows(), place.tokens(), object);
  if (call.advantage && !place.resident)
    refuse(env, "advantage: only a resident batch can compute advantages and a loss in one call");
  if (!place.on_cuda() && (call.device_grad || call.device_grad_entropy))
    refuse(env, "only a device can write a gradient on a device");
  return {function, place, call};
}

// Implements evaluate() and evaluateSync(). If `later` is set, returns a promise. Arguments from JavaScript:
// function, batch, call, device.
Napi::Value evaluate(const Napi::CallbackInfo& info, bool later) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Object object = info[2].As<Napi::Object>();
    const auto [function, place, call] = read_evaluation(info.Env(), info[0], info[1], object, info[3]);
    const Napi::Value logits = object.Get("logits");
    if (place.on_cuda() && !logits.IsUndefined()) refuse(info.Env(), "only the CPU takes logits here");
    if (place.on_cuda()) return evaluate_on_cuda(info, function, place, call, later);
    if (!logits.IsUndefined())
      return logits_gradient(info, function, place.batch, call, logits.As<Napi::Object>(), later);
    if (!later) return evaluate_now(info.Env(), function, place.batch, call);
    return evaluate_later(hold(info), function, place.batch, call, false);
  });
}

// Implements evaluateTogether(). Argument from JavaScript: an array of arrays of a function, a batch and a
// call.
Napi::Value evaluate_together(const Napi::CallbackInfo& info, bool) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Env env = info.Env();
    auto task = std::make_shared<Reporting<cpu::EvaluationGroup>>();
    const Napi::Array list = info[0].As<Napi::Array>();
    for (uint32_t i = 0; i < list.Length(); ++i) {
      const Napi::Array given = list.Get(i).As<Napi::Array>();
      const Napi::Object object = given.Get(2u).As<Napi::Object>();
      const auto [function, place, call] =
          read_evaluation(env, given.Get(0u), given.Get(1u), object, env.Undefined());
      if (place.on_cuda() || !object.Get("logits").IsUndefined())
        refuse(env, "only batches in host memory can be computed together");
      task->add(std::make_unique<cpu::Evaluation>(function, place.batch, call.coefficients, call.normalizer,
                                                  call.outputs))
          .set_abort_flag(call.abort);
    }
    return run_later(hold(info), task);
  });
}

// Implements evaluateHost() and evaluateHostLater(). If `later` is set, returns a promise. Arguments from
// JavaScript: function, rows, rowLength, offsets, dtypes, each column, mask, expert, values, grad,
// gradEntropy, mu, klCoef, entropyCoef, abort, quick.
Napi::Value evaluate_host(const Napi::CallbackInfo& info, bool later) {
  return guarded(info, [&]() -> Napi::Value {
    const FunctionHandle& function = function_of(info[0]);
    BatchView batch;
    batch.layout = read_layout(info[1], info[2], info[3]);
    const int64_t dtypes = info[4].As<Napi::Number>().Int64Value();
    const unsigned columns = columns_of(function->function());
    constexpr size_t given = kWeights;  // a function that reads kWeights is never called here
    constexpr size_t first = 5, next = first + given;
    for (size_t c = 0; c < given; ++c)
      if ((columns >> c & 1) != 0 && !info[first + c].IsUndefined())
        batch.column[c] = read_column(info[first + c], static_cast<int>(dtypes >> (3 * c) & 7), batch.layout);
    const int64_t tokens = batch.layout.tokens();
    batch.mask = static_cast<const uint8_t*>(elements(info[next], napi_uint8_array, tokens, "mask"));
    if (!info[next + 1].IsUndefined())
      batch.expert = static_cast<const uint8_t*>(
          elements(info[next + 1], napi_uint8_array, batch.layout.rows, "expert"));
    if (tokens > 0) check_columns(info.Env(), columns, present_columns(batch), true, true);
    check_row_columns(info.Env(), *function, present_row_columns(batch));
    Call call;
    call.outputs.values =
        static_cast<double*>(elements(info[next + 2], napi_float64_array, function->values(), "values"));
    const GradientCodes codes = gradient_codes(info.Env(), static_cast<double>(dtypes >> (3 * given)));
    call.outputs.grad = gradient_if_any(info[next + 3], codes.grad, tokens, "grad");
    call.outputs.grad_entropy = gradient_if_any(info[next + 4], codes.grad_entropy, tokens, "gradEntropy");
    call.coefficients = {number_or_zero(info[next + 5]), number_or_zero(info[next + 6]),
                         number_or_zero(info[next + 7])};
    if (!later) return evaluate_now(info.Env(), function, batch, call);
    call.abort = flag_if_any(info[next + 8]);
    return evaluate_later(hold_arrays(info), function, batch, call, info[next + 9].ToBoolean());
  });
}

// Implements merge(). Arguments from JavaScript: function, parts, counts, values.
Napi::Value merge_parts(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const FunctionHandle& function = function_of(info[0]);
    const Napi::Array list = info[1].As<Napi::Array>();
    std::vector<const double*> parts;
    for (uint32_t i = 0; i < list.Length(); ++i)
      parts.push_back(
          static_cast<const double*>(elements(list.Get(i), napi_float64_array, kPartLength, "part")));
    const void* counts = elements(info[2], napi_float64_array, kCounts, "counts");
    double* values =
        static_cast<double*>(elements(info[3], napi_float64_array, function->values(), "values"));
    if (parts.empty()) refuse(info.Env(), "parts is empty");
    const int64_t present = merge(*function, parts, read_counts(static_cast<const double*>(counts)), values);
    return Napi::Number::New(info.Env(), static_cast<double>(present));
  });
}

// Implements kl() and klSync(). If `later` is set, returns a promise. Arguments from JavaScript: estimator,
// batch, out, base, scale, device, stream.
Napi::Value kl(const Napi::CallbackInfo& info, bool later) {
  return guarded(info, [&]() -> Napi::Value {
    Function function;
    function.kl = read_estimator(info[0]);
    const Place place = read_place(info[1], info[5], columns_of(function), !info[3].IsUndefined());
    float* out = floats(info[2], place.tokens(), "out");
    const float* base = floats_if_any(info[3], place.tokens(), "base");
    const double scale = number_or_zero(info[4]);
    if (place.on_cuda())
      return kl_on_cuda(info, function.kl, place, base, scale, out, stream_if_any(info[6]), later);
    if (!later)
      return run_now(info.Env(),
                     std::make_shared<cpu::KlEvaluation>(function.kl, place.batch, base, scale, out));
    return run_later(hold(info), std::make_shared<Reporting<cpu::KlEvaluation>>(function.kl, place.batch,
                                                                                base, scale, out));
  });
}

Napi::Value create_advantage(const Napi::CallbackInfo& info) {
  return owned(info.Env(), read_advantage_function(info[0].As<Napi::Object>()));
}

const AdvantageFunction& advantage_of(const Napi::Value& value) {
  return *value.As<Napi::External<AdvantageFunction>>().Data();
}

Napi::Value advantage_names(const Napi::CallbackInfo& info) {
  Napi::Array names = Napi::Array::New(info.Env());
  for (const std::string& name : advantage_value_names(advantage_of(info[0])))
    names.Set(names.Length(), name);
  return names;
}

// Implements advantages() and advantagesSync(). If `later` is set, returns a promise. Arguments from
// JavaScript: function, batch, call, device.
Napi::Value compute_advantages(const Napi::CallbackInfo& info, bool later) {
  return guarded(info, [&]() -> Napi::Value {
    const AdvantageFunction& function = advantage_of(info[0]);
    const AdvantagePlace place = read_advantage_place(function, info[1], info[3]);
    const AdvantageBatch& batch = place.batch;
    const AdvantageCall call =
        read_advantage_call(function, place.rows(), place.tokens(), info[2].As<Napi::Object>());
    if (place.on_cuda() && (batch.row_tokens || batch.spread || call.outputs.spreads))
      refuse(info.Env(), "only the CPU computes advantages of a part of a batch");
    if (place.on_cuda()) return advantages_on_cuda(info, function, place, call, later);
    if (!later)
      return run_now(info.Env(), std::make_shared<cpu::AdvantageEvaluation>(function, batch, call.outputs,
                                                                            call.seed, call.not_finite_row));
    auto task = std::make_shared<Reporting<cpu::AdvantageEvaluation>>(function, batch, call.outputs,
                                                                      call.seed, call.not_finite_row);
    task->set_abort_flag(call.abort);
    return run_later(hold(info), task);
  });
}

// Implements addSpreads(). Arguments from JavaScript: spreads, total.
Napi::Value add_spreads(const Napi::CallbackInfo& info) {
  const auto rows = static_cast<int64_t>(info[0].As<Napi::TypedArray>().ElementLength()) / kSpreadLength;
  const void* spreads = elements(info[0], napi_float64_array, rows * kSpreadLength, "spreads");
  void* total = elements(info[1], napi_float64_array, kSpreadLength, "total");
  cpu::add_spreads(static_cast<const Spread*>(spreads), rows, static_cast<Spread*>(total));
  return info.Env().Undefined();
}

// Returns the names of the operations of programs.
Napi::Value program_ops(Napi::Env env) {
  Napi::Array names = Napi::Array::New(env);
  for (const char* name : program::kOpNames) names.Set(names.Length(), name);
  return names;
}

// Implements softGate(). Arguments from JavaScript: tauPos, tauNeg, ratio, advantages, out.
Napi::Value soft_gate(const Napi::CallbackInfo& info) {
  const Sapo sapo({info[0].ToNumber().DoubleValue(), info[1].ToNumber().DoubleValue(), 0.0});
  const int64_t n = static_cast<int64_t>(info[2].As<Napi::TypedArray>().ElementLength());
  const float* ratio = floats(info[2], n, "ratio");
  const float* advantages = floats(info[3], n, "advantages");
  float* out = floats(info[4], n, "out");
  for (int64_t i = 0; i < n; ++i) out[i] = sapo.gate(ratio[i], advantages[i] > 0.0f).value;
  return info.Env().Undefined();
}

Napi::Value set_threads(const Napi::CallbackInfo& info) {
  cpu::Pool::shared().set_threads(info[0].ToNumber().Int32Value());
  return info.Env().Undefined();
}

Napi::Value help(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), false);
}

Napi::Value cpu_device(const Napi::CallbackInfo& info) {
  Napi::Object device = Napi::Object::New(info.Env());
  device.Set("cores", std::thread::hardware_concurrency());
  device.Set("threads", cpu::Pool::shared().threads());
  device.Set("isa", cpu::target()->name);
  return device;
}

// Runs the asynchronous version of `call`, which returns a promise. The object `reading` keeps the memory of
// the arrays that the call reads until the call is done.
template <Napi::Value (*call)(const Napi::CallbackInfo&, bool)>
Napi::Value later(const Napi::CallbackInfo& info) {
  const ReadForLater reading(info.Env());
  return call(info, true);
}

Napi::Object init(Napi::Env env, Napi::Object exports) {
  if (!cpu::target())
    throw Napi::Error::New(env, "POLICY_LOSS_ISA names an instruction set that this machine or build lacks");
  stay_loaded();
  env.SetInstanceData(new Instance(env));
  share_devices_work();
  const auto add = [&](const char* name, auto function) {
    exports.Set(name, Napi::Function::New(env, function, name));
  };
  exports.Set("version", POLICY_LOSS_VERSION);
  exports.Set("partLength", kPartLength);
  exports.Set("programOps", program_ops(env));
  add("createFunction", create_function);
  add("valueNames", function_value_names);
  add("interpretedInstructions", interpreted_instructions);
  add("gradientIsPerToken", has_gradient_per_token);
  add("evaluate", later<evaluate>);
  add("evaluateTogether", later<evaluate_together>);
  add("evaluateSync", [](const Napi::CallbackInfo& info) { return evaluate(info, false); });
  add("merge", merge_parts);
  add("kl", later<kl>);
  add("klSync", [](const Napi::CallbackInfo& info) { return kl(info, false); });
  add("evaluateHost", [](const Napi::CallbackInfo& info) { return evaluate_host(info, false); });
  add("evaluateHostLater", later<evaluate_host>);
  add("createAdvantage", create_advantage);
  add("advantageValueNames", advantage_names);
  add("advantages", later<compute_advantages>);
  add("advantagesSync", [](const Napi::CallbackInfo& info) { return compute_advantages(info, false); });
  add("addSpreads", add_spreads);
  add("logits", later<logits>);
  add("logitsSync", [](const Napi::CallbackInfo& info) { return logits(info, false); });
  add("softGate", soft_gate);
  add("setThreads", set_threads);
  add("help", help);
  add("cpu", cpu_device);
  add("cudaDevices", cuda_devices);
  add("upload", upload);
  add("update", update);
  add("trim", trim);
  add("release", release);
  add("deviceArray", device_array);
  add("deviceArrayAddress", device_array_address);
  add("readDeviceArray", read_device_array_to_host);
  add("exportDeviceArray", export_device_array);
  add("releaseDeviceArray", release_device_array);
  add("dlpackTensor", dlpack_tensor);
  add("deviceArrayToDlpack", device_array_to_dlpack);
  add("allocPinned", alloc_pinned);
  add("freePinned", free_pinned);
#if defined(__linux__)
  add_recycling(env, exports);
#endif
#if defined(POLICY_LOSS_BENCH)
  add_bench_functions(env, exports);
#endif
  return exports;
}

NODE_API_MODULE(policy_loss, init)

}  // namespace
}  // namespace policy_loss::addon

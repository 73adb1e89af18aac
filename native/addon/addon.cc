// The functions that the native module exports to JavaScript. The file binding.d.ts, at the top of the
// repository, declares and describes them. This folder only converts arguments and starts calls. The engines
// compute the results.
#include <napi.h>

#include <memory>
#include <string>
#include <thread>

#include "addon/bench.h"
#include "addon/calls.h"
#include "addon/device_memory.h"
#include "addon/device_work.h"
#include "addon/devices.h"
#include "addon/head.h"
#include "addon/logits.h"
#include "cpu/advantages.h"
#include "loss/sapo.h"

namespace policy_loss::addon {
namespace {

Napi::Value create_function(const Napi::CallbackInfo& info) {
  Function function = read_function(info[0].As<Napi::Object>());
  return owned<FunctionHandle>(info.Env(), std::make_shared<PreparedFunction>(std::move(function)));
}

Napi::Array names_of(Napi::Env env, const std::vector<std::string>& names) {
  Napi::Array list = Napi::Array::New(env);
  for (const std::string& name : names) list.Set(list.Length(), name);
  return list;
}

Napi::Value function_value_names(const Napi::CallbackInfo& info) {
  return names_of(info.Env(), value_names(function_of(info[0])->function()));
}

Napi::Value interpreted_instructions(const Napi::CallbackInfo& info) {
  const program::Program* const program = function_of(info[0])->program(info[1].ToBoolean());
  return Napi::Number::New(info.Env(), program ? program->view().interpreted : 0);
}

Napi::Value has_gradient_per_token(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), gradient_is_per_token(*function_of(info[0])));
}

// Implements evaluate(call).
Napi::Value evaluate(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Env env = info.Env();
    const Napi::Object object = info[0].As<Napi::Object>();
    const FunctionHandle& function = function_of(object.Get("fn"));
    Place place = read_place(object);
    if (place.device >= 0) place.there = read_pointers(object.Get("batch"));
    const Call call = read_call(*function, place.rows(), place.tokens(), place.resident != nullptr, object);
    unsigned columns = columns_of(function->function());
    if (call.advantage) columns &= ~reads(kAdvantages);
    if (call.weights) columns &= ~reads(kTokenWeights);
    check_place(env, place, columns, true);
    if (place.rows() > 0) check_row_columns(env, *function, place.row_columns());
    const Napi::Value logits = object.Get("logits");
    if (place.on_cuda()) {
      if (!logits.IsUndefined()) refuse(env, "only the CPU takes logits here");
      return evaluate_on_cuda(object, function, place, call);
    }
    if (call.device_grad || call.device_grad_entropy || call.grad_there)
      refuse(env, "only a device can write a gradient on a device");
    if (!logits.IsUndefined())
      return logits_gradient(object, function, place.batch, call, logits.As<Napi::Object>());
    return run(object,
               std::make_shared<Reporting<cpu::Evaluation>>(function, place.batch, call.coefficients,
                                                            call.normalizer, call.outputs),
               [](const cpu::Evaluation& task) { return task.outputs().present; });
  });
}

// Implements merge(). Arguments from JavaScript: function, parts, counts, values.
Napi::Value merge_parts(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const FunctionHandle& function = function_of(info[0]);
    const Napi::Array list = info[1].As<Napi::Array>();
    std::vector<const double*> parts;
    for (uint32_t i = 0; i < list.Length(); ++i)
      parts.push_back(array_of<double>(list.Get(i), kPartLength, "part"));
    const double* counts = array_of<double>(info[2], kCounts, "counts");
    double* values = array_of<double>(info[3], function->values(), "values");
    if (parts.empty()) refuse(info.Env(), "parts is empty");
    const int64_t present = merge(*function, parts, read_counts(counts), values);
    return Napi::Number::New(info.Env(), static_cast<double>(present));
  });
}

// Implements kl(call).
Napi::Value kl(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Object object = info[0].As<Napi::Object>();
    Function function;
    function.kl = read_estimator(object.Get("estimator"));
    const Place place = read_place(object);
    const KlOutputs outputs{array_in<float>(object, "out", place.tokens()),
                            array_if_any<float>(object, "base", place.tokens()),
                            number_or_zero(object.Get("scale"))};
    check_place(info.Env(), place, columns_of(function), outputs.base != nullptr);
    if (place.on_cuda()) return kl_on_cuda(object, function, place, outputs);
    return run(object,
               std::make_shared<Reporting<cpu::KlEvaluation>>(function.kl, place.batch, outputs.base,
                                                              outputs.scale, outputs.out),
               [](const cpu::KlEvaluation& task) { return task.mean_kl(); });
  });
}

Napi::Value create_advantage(const Napi::CallbackInfo& info) {
  return owned(info.Env(), read_advantage_function(info[0].As<Napi::Object>()));
}

const AdvantageFunction& advantage_of(const Napi::Value& value) {
  return *value.As<Napi::External<AdvantageFunction>>().Data();
}

Napi::Value advantage_names(const Napi::CallbackInfo& info) {
  return names_of(info.Env(), advantage_value_names(advantage_of(info[0])));
}

// Implements advantages(call).
Napi::Value compute_advantages(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Object object = info[0].As<Napi::Object>();
    const AdvantageFunction& function = advantage_of(object.Get("fn"));
    const AdvantagePlace place = read_advantage_place(function, object);
    const AdvantageBatch& batch = place.batch;
    const AdvantageCall call = read_advantage_call(function, place.rows(), place.tokens(), object);
    if (place.on_cuda() && (batch.row_tokens || batch.spread || call.outputs.spreads))
      refuse(info.Env(), "only the CPU computes advantages of a part of a batch");
    if (place.on_cuda()) return advantages_on_cuda(object, function, place, call);
    return run(
        object,
        std::make_shared<Reporting<cpu::AdvantageEvaluation>>(function, batch, call.outputs, call.seed,
                                                              call.not_finite_row),
        [](const cpu::AdvantageEvaluation& task) { return static_cast<int>(task.not_finite().input); });
  });
}

// Implements addSpreads(). Arguments from JavaScript: spreads, total.
Napi::Value add_spreads(const Napi::CallbackInfo& info) {
  const auto rows = static_cast<int64_t>(info[0].As<Napi::TypedArray>().ElementLength()) / kSpreadLength;
  const void* spreads = array_of<double>(info[0], rows * kSpreadLength, "spreads");
  void* total = array_of<double>(info[1], kSpreadLength, "total");
  cpu::add_spreads(static_cast<const Spread*>(spreads), rows, static_cast<Spread*>(total));
  return info.Env().Undefined();
}

// Returns the names of the operations of programs.
Napi::Value program_ops(Napi::Env env) {
  return names_of(env, {std::begin(program::kOpNames), std::end(program::kOpNames)});
}

// Implements softGate(). Arguments from JavaScript: tauPos, tauNeg, ratio, advantages, out.
Napi::Value soft_gate(const Napi::CallbackInfo& info) {
  const Sapo sapo({info[0].ToNumber().DoubleValue(), info[1].ToNumber().DoubleValue(), 0.0});
  const int64_t n = static_cast<int64_t>(info[2].As<Napi::TypedArray>().ElementLength());
  const float* ratio = array_of<float>(info[2], n, "ratio");
  const float* advantages = array_of<float>(info[3], n, "advantages");
  float* out = array_of<float>(info[4], n, "out");
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
  add("evaluate", evaluate);
  add("merge", merge_parts);
  add("kl", kl);
  add("createAdvantage", create_advantage);
  add("advantageValueNames", advantage_names);
  add("advantages", compute_advantages);
  add("addSpreads", add_spreads);
  add("logits", logits);
  add("head", head);
  add("softGate", soft_gate);
  add("setThreads", set_threads);
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
  add("allocPinned", alloc_pinned);
  add("freePinned", free_pinned);
#if defined(POLICY_LOSS_BENCH)
  add_bench_functions(env, exports);
#endif
  return exports;
}

NODE_API_MODULE(policy_loss, init)

}  // namespace
}  // namespace policy_loss::addon

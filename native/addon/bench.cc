#include "addon/bench.h"

#include "addon/calls.h"
#include "addon/devices.h"
#include "cpu/traffic.h"

namespace policy_loss::addon {
namespace {

// Implements traffic(call), which only reads and writes the memory of an evaluation (see cpu/traffic.h).
Napi::Value traffic(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Object object = info[0].As<Napi::Object>();
    const FunctionHandle& function = function_of(object.Get("fn"));
    const Place place = read_place(object);
    check_place(info.Env(), place, columns_of(function->function()), false);
    const Call call = read_call(*function, place.rows(), place.tokens(), place.resident != nullptr, object);
    return run(object, std::make_shared<Reporting<cpu::Traffic>>(function, place.batch, call.outputs),
               [](const cpu::Traffic& task) { return task.seen(); });
  });
}

// Implements memoryTraffic(call), which reads an array and may write it back.
Napi::Value memory_traffic(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Object object = info[0].As<Napi::Object>();
    const auto array = object.Get("array").As<Napi::TypedArray>();
    char* const data = static_cast<char*>(array.ArrayBuffer().Data()) + array.ByteOffset();
    const bool writes = object.Get("writes").ToBoolean();
    return run(object,
               std::make_shared<Reporting<cpu::MemoryTraffic>>(data, static_cast<int64_t>(array.ByteLength()),
                                                               writes),
               [](const cpu::MemoryTraffic& task) { return task.seen(); });
  });
}

// Implements evaluateOnDevice(call), which evaluates a resident batch and leaves the gradient on the device.
Napi::Value evaluate_on_device(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Object object = info[0].As<Napi::Object>();
    const FunctionHandle& function = function_of(object.Get("fn"));
    const Place place = read_place(object);
    check_place(info.Env(), place, columns_of(function->function()), true);
    if (!place.resident) refuse(info.Env(), "the batch must be on a device");
    Call call = read_call(*function, place.rows(), place.tokens(), place.resident != nullptr, object);
    call.grad_stays = true;
    call.timing = array_if_any<double>(object, "timing", 2);
    return evaluate_on_cuda(object, function, place, call);
  });
}

// Implements copyBandwidth(), which measures how fast a device copies within its own memory. Arguments from
// JavaScript: device, bytes.
Napi::Value copy_bandwidth(const Napi::CallbackInfo& info) {
  cuda::Problem problem;
  double bandwidth = 0;
  const cuda::Status status = cuda::copy_bandwidth(info[0].ToNumber().Int32Value(),
                                                   info[1].ToNumber().Int64Value(), &bandwidth, &problem);
  if (status != cuda::Status::kOk) throw coded_error(info.Env(), "ERR_DEVICE_UNAVAILABLE", problem.message);
  return Napi::Number::New(info.Env(), bandwidth);
}

}  // namespace

void add_bench_functions(Napi::Env env, Napi::Object exports) {
  exports.Set("traffic", Napi::Function::New(env, traffic, "traffic"));
  exports.Set("memoryTraffic", Napi::Function::New(env, memory_traffic, "memoryTraffic"));
  exports.Set("evaluateOnDevice", Napi::Function::New(env, evaluate_on_device, "evaluateOnDevice"));
  exports.Set("copyBandwidth", Napi::Function::New(env, copy_bandwidth, "copyBandwidth"));
}

}  // namespace policy_loss::addon

#include "addon/bench.h"

#include "addon/devices.h"
#include "addon/keep.h"
#include "addon/tasks.h"
#include "cpu/traffic.h"

namespace policy_loss::addon {
namespace {

// Implements traffic(), which only reads and writes the memory of an evaluation (see cpu/traffic.h).
// Arguments from JavaScript: function, batch, call.
Napi::Value traffic(const Napi::CallbackInfo& info) {
  const ReadForLater reading(info.Env());
  return guarded(info, [&]() -> Napi::Value {
    const FunctionHandle& function = function_of(info[0]);
    const BatchView batch = read_batch(info[1].As<Napi::Object>());
    const unsigned columns = columns_of(function->function());
    check_columns(info.Env(), columns, present_columns(batch), false, batch.mask != nullptr);
    const Call call =
        read_call(function->function(), batch.layout.rows, batch.layout.tokens(), info[2].As<Napi::Object>());
    return run_later(hold(info), std::make_shared<Reporting<cpu::Traffic>>(function, batch, call.outputs),
                     [](Napi::Env, const cpu::Traffic& task) { return static_cast<double>(task.seen()); });
  });
}

// Implements memoryTraffic(), which reads an array and may write it back. Arguments from JavaScript: array,
// writes.
Napi::Value memory_traffic(const Napi::CallbackInfo& info) {
  const ReadForLater reading(info.Env());
  return guarded(info, [&]() -> Napi::Value {
    const auto array = info[0].As<Napi::TypedArray>();
    char* const data = static_cast<char*>(array.ArrayBuffer().Data()) + array.ByteOffset();
    const bool writes = info[1].As<Napi::Boolean>();
    return run_later(
        hold(info),
        std::make_shared<Reporting<cpu::MemoryTraffic>>(data, static_cast<int64_t>(array.ByteLength()),
                                                        writes),
        [](Napi::Env, const cpu::MemoryTraffic& task) { return static_cast<double>(task.seen()); });
  });
}

// Implements evaluateOnDevice(), which evaluates a resident batch and leaves the gradient on the device.
// Arguments from JavaScript: function, resident, call, timing.
Napi::Value evaluate_on_device(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const FunctionHandle& function = function_of(info[0]);
    const Place place = read_place(info[1], info.Env().Undefined(), columns_of(function->function()), true);
    if (!place.resident) refuse(info.Env(), "the batch must be on a device");
    Call call = read_call(function->function(), place.rows(), place.tokens(), info[2].As<Napi::Object>());
    call.grad_stays = true;
    if (!info[3].IsUndefined())
      call.timing = static_cast<double*>(elements(info[3], napi_float64_array, 2, "timing"));
    return evaluate_on_cuda(info, function, place, call, false);
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

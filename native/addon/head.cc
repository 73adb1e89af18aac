#include "addon/head.h"

#include "addon/calls.h"
#include "addon/device_work.h"
#include "addon/devices.h"
#include "cpu/head.h"

namespace policy_loss::addon {

namespace {

// Limits on sizes, so that no product of two of them overflows.
constexpr int64_t kMostRows = int64_t{1} << 31;
constexpr int64_t kMostWidth = (int64_t{1} << 31) - 1;

int64_t size_in(const Napi::Object& object, const char* name, int64_t most) {
  const int64_t size = object.Get(name).ToNumber().Int64Value();
  if (size < 0 || size > most) refuse(object.Env(), std::string(name) + " is out of range");
  return size;
}

// An array of floats, and the name of the property that holds its dtype's code.
struct Floats {
  const char* name;
  const char* dtype;
  int64_t length;
};

// Returns the elements of an array; null if the property is undefined. Sets *dtype.
void* floats_if_any(const Napi::Object& object, const Floats& floats, DType* dtype) {
  const Napi::Value value = object.Get(floats.name);
  if (value.IsUndefined()) return nullptr;
  *dtype = view_of(object.Env(), object.Get(floats.dtype).ToNumber().Int32Value() & 3).dtype;
  return elements(value, *dtype == DType::kFloat32 ? napi_float32_array : napi_uint16_array, floats.length,
                  floats.name);
}

// Returns how many rows of logits a call has: from the first row that takes part to the last one.
int64_t rows_of_logits(const HeadCall& call) {
  int64_t first = 0, last = call.rows;
  while (first < last && call.targets[first] == kIgnoredTarget) ++first;
  while (last > first && call.targets[last - 1] == kIgnoredTarget) --last;
  return last - first;
}

// Reads all of a call but the arrays that are on a device if a device computes it.
HeadCall read_head(const Napi::Object& object) {
  HeadCall call;
  call.rows = size_in(object, "rows", kMostRows);
  call.vocabulary = size_in(object, "vocabulary", kMostWidth);
  call.size = size_in(object, "size", kMostWidth);
  call.targets = array_in<int32_t>(object, "targets", call.rows);
  call.hidden = floats_if_any(object, {"hidden", "hiddenDtype", call.rows * call.size}, &call.hidden_dtype);
  call.weight =
      floats_if_any(object, {"weight", "weightDtype", call.vocabulary * call.size}, &call.weight_dtype);
  call.bias = floats_if_any(object, {"bias", "biasDtype", call.vocabulary}, &call.bias_dtype);
  call.grad_hidden = floats_if_any(object, {"gradHidden", "gradHiddenDtype", call.rows * call.size},
                                   &call.grad_hidden_dtype);
  call.adds = object.Get("adds").ToBoolean();
  if (!call.hidden || !call.weight) refuse(object.Env(), "hidden or weight is missing");
  return call;
}

}  // namespace

Napi::Value head(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Object object = info[0].As<Napi::Object>();
    HeadCall call = read_head(object);
    const int64_t rows = rows_of_logits(call);
    if (!object.Get("device").IsUndefined()) return head_on_cuda(object, call, rows);
    call.logits = array_in<float>(object, "logits", rows * call.vocabulary);
    call.grad_weight = array_if_any<float>(object, "gradWeight", call.vocabulary * call.size);
    call.grad_bias = array_if_any<float>(object, "gradBias", call.vocabulary);
    return run(object, std::make_shared<Reporting<cpu::HeadEvaluation>>(call),
               [](const cpu::Task&) { return 0; });
  });
}

}  // namespace policy_loss::addon

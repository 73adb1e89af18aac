#include "addon/logits.h"

#include "addon/calls.h"
#include "addon/device_work.h"
#include "addon/devices.h"
#include "cpu/logits.h"

namespace policy_loss::addon {

namespace {

// Limits on sizes. JavaScript represents every integer up to the first one exactly.
constexpr int64_t kMostLogits = int64_t{1} << 53;
constexpr int64_t kMostTokens = (int64_t{1} << 31) - 1;

int64_t size_in(const Napi::Object& object, const char* name, int64_t most) {
  const int64_t size = object.Get(name).ToNumber().Int64Value();
  if (size < 0 || size > most) refuse(object.Env(), std::string(name) + " is out of range");
  return size;
}

// Returns the elements of an array of logits, of which the last row may lack the numbers after its logits. An
// address in memory of a device is returned as it is.
void* matrix(const Napi::Value& value, DType dtype, const cpu::LogitsCall& call, int64_t stride,
             const char* what) {
  if (stride < call.vocabulary || (stride > 0 && call.rows > kMostLogits / stride))
    refuse(value.Env(), std::string(what) + " is too short");
  if (value.IsBigInt()) return address_in(value);
  if (!value.IsTypedArray()) refuse(value.Env(), std::string(what) + " is missing");
  const auto length = static_cast<int64_t>(value.As<Napi::TypedArray>().ElementLength());
  if (call.rows > 0 && length < (call.rows - 1) * stride + call.vocabulary)
    refuse(value.Env(), std::string(what) + " is too short");
  return elements(value, dtype == DType::kFloat32 ? napi_float32_array : napi_uint16_array, length, what);
}

DType dtype_in(const Napi::Object& object, const char* name) {
  return view_of(object.Env(), object.Get(name).ToNumber().Int32Value() & 3).dtype;
}

void read_support(const Napi::Object& object, cpu::LogitsCall* call) {
  const Napi::Value ids = object.Get("tokenIds");
  if (ids.IsUndefined()) return;
  const Napi::Env env = object.Env();
  if (!ids.IsTypedArray()) refuse(env, "tokenIds is not an array");
  const auto count = static_cast<int64_t>(ids.As<Napi::TypedArray>().ElementLength());
  call->token_ids = array_of<int32_t>(ids, count, "tokenIds");
  call->offsets = array_in<int32_t>(object, "offsets", call->rows + 1);
  if (call->offsets[0] != 0 || call->offsets[call->rows] != count)
    refuse(env, "offsets do not match tokenIds");
  for (int64_t row = 0; row < call->rows; ++row) {
    const int64_t length = int64_t{call->offsets[row + 1]} - call->offsets[row];
    if (length < 0) refuse(env, "offsets must not decrease");
    if (length > call->vocabulary && call->targets && call->targets[row] != kIgnoredTarget)
      refuse(env, "a support has more tokens than the vocabulary");
  }
}

void read_list(const Napi::Object& object, cpu::LogitsCall* call) {
  const Napi::Value ids = object.Get("listIds");
  if (ids.IsUndefined()) return;
  const Napi::Env env = object.Env();
  if (!ids.IsTypedArray()) refuse(env, "listIds is not an array");
  const auto count = static_cast<int64_t>(ids.As<Napi::TypedArray>().ElementLength());
  call->list_length = call->rows > 0 ? count / call->rows : 0;
  if (call->list_length * call->rows != count) refuse(env, "listIds has not the same length for all rows");
  call->list_ids = array_of<int32_t>(ids, count, "listIds");
  call->list_logprob = array_if_any<float>(object, "listLogprob", count);
  if (call->out) {
    call->list_grad = array_in<float>(object, "gradListLogprob", count);
    call->others = array_if_any<double>(object, "others", call->rows);
    if (call->others) call->grad_others = array_in<double>(object, "gradOthers", call->rows);
  }
  if (call->out && !call->list_logprob) refuse(env, "listLogprob is missing");
  if (call->token_ids || call->softcap > 0) refuse(env, "a list excludes a support and a softcap");
}

void read_top_ids(const Napi::Object& object, cpu::LogitsCall* call) {
  const Napi::Value ids = object.Get("topIds");
  if (ids.IsUndefined()) return;
  if (!ids.IsTypedArray()) refuse(object.Env(), "topIds is not an array");
  const auto places = static_cast<int64_t>(ids.As<Napi::TypedArray>().ElementLength());
  call->top_length = call->rows > 0 ? places / call->rows : 0;
  call->top_ids = array_in<int32_t>(object, "topIds", call->top_length * call->rows);
}

// Reads a call. Its logits and its gradient may be in memory of a device if `on_device` is set.
cpu::LogitsCall read_logits_call(const Napi::Object& object, bool on_device = false) {
  for (const char* name : {"data", "out"})
    if (object.Get(name).IsBigInt() && !on_device)
      refuse(object.Env(), "the CPU cannot read a device's memory");
  cpu::LogitsCall call;
  call.rows = size_in(object, "rows", kMostLogits);
  call.vocabulary = size_in(object, "vocabulary", kMostTokens);
  call.row_stride = size_in(object, "rowStride", kMostLogits);
  call.dtype = dtype_in(object, "dtype");
  call.data = matrix(object.Get("data"), call.dtype, call, call.row_stride, "data");
  call.targets = array_if_any<int32_t>(object, "targets", call.rows);
  call.temperature = number_or_zero(object.Get("temperature"));
  call.temperatures = array_if_any<double>(object, "temperatures", call.rows);
  call.softcap = number_or_zero(object.Get("softcap"));
  read_support(object, &call);
  call.logprob = array_if_any<float>(object, "logprob", call.rows);
  call.logsumexp = array_if_any<double>(object, "logsumexp", call.rows);
  call.entropy = array_if_any<float>(object, "entropy", call.rows);
  const Napi::Value out = object.Get("out");
  if (!out.IsUndefined()) {
    call.out_stride = size_in(object, "outStride", kMostLogits);
    call.out_dtype = dtype_in(object, "outDtype");
    call.out = matrix(out, call.out_dtype, call, call.out_stride, "out");
    call.grad_logprob = array_if_any<double>(object, "gradLogprob", call.rows);
    call.grad_entropy = array_if_any<double>(object, "gradEntropy", call.rows);
  }
  read_list(object, &call);
  read_top_ids(object, &call);
  if (!call.targets) refuse(object.Env(), "targets is missing");
  return call;
}

}  // namespace

Napi::Value logits(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Object object = info[0].As<Napi::Object>();
    const bool on_device = !object.Get("device").IsUndefined();
    const cpu::LogitsCall call = read_logits_call(object, on_device);
    if (call.list_ids && !call.list_logprob) refuse(info.Env(), "listLogprob is missing");
    if (call.out && !call.grad_logprob && !call.list_grad) refuse(info.Env(), "gradLogprob is missing");
    if (call.out && call.top_ids) refuse(info.Env(), "a call with a gradient finds no largest logits");
    if (on_device && call.top_ids && !object.Get("data").IsBigInt())
      refuse(info.Env(), "a device finds the largest logits in its memory only");
    if (on_device) return logits_on_cuda(object, call);
    return run(object, std::make_shared<Reporting<cpu::LogitsEvaluation>>(call),
               [](const cpu::Task&) { return 0; });
  });
}

Napi::Value logits_gradient(const Napi::Object& object, const FunctionHandle& function,
                            const BatchView& batch, const Call& call, const Napi::Object& given) {
  const Napi::Env env = object.Env();
  const cpu::LogitsCall logits = read_logits_call(given);
  const int64_t first = size_in(given, "firstToken", kMostLogits);
  const int64_t tokens = batch.layout.tokens();
  if (first > tokens || logits.rows > tokens - first) refuse(env, "firstToken is out of range");
  if (!logits.out || !logits.logprob || !call.outputs.grad) refuse(env, "logits lacks an output");
  if (call.outputs.grad.dtype != DType::kFloat32 || call.outputs.grad_entropy.dtype != DType::kFloat32)
    refuse(env, "a gradient is not in float32");
  if (!gradient_is_per_token(*function)) refuse(env, "the function has no gradients per token");
  return run(object,
             std::make_shared<Reporting<cpu::LogitsGradient>>(function, batch, call.coefficients,
                                                              call.normalizer, call.outputs, logits, first),
             [](const cpu::Task&) { return 0; });
}

}  // namespace policy_loss::addon

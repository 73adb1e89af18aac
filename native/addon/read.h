// Converts JavaScript values to the views that the engines read.
//
// The TypeScript code in lib/ has already validated the arguments and reported errors to the user. The checks
// here only prevent access to memory outside of the arrays.
#pragma once

#include <napi.h>

#include <memory>
#include <string>

#include "cpu/engine.h"
#include "cuda/cuda.h"
#include "engine/advantages.h"

namespace policy_loss::addon {

// A shared reference to an array in the memory of a device. The array is freed with its last reference.
using DeviceArrayHandle = std::shared_ptr<cuda::DeviceArray>;

using FunctionHandle = std::shared_ptr<const PreparedFunction>;

// Throws a TypeError. Takes a plain text, because making a string of it would take each caller more code than
// the call itself.
[[noreturn]] void refuse(Napi::Env env, const char* what);
[[noreturn]] inline void refuse(Napi::Env env, const std::string& what) {
  refuse(env, what.c_str());
}

// Returns a JavaScript error. `code` is one of the codes in lib/base/errors.ts, and `what` is the message.
Napi::Error coded_error(Napi::Env env, const char* code, const std::string& what);

// Moves `thing` into a JavaScript value that owns it, and returns the value. If the JavaScript thread is
// being terminated, creating the value throws an exception, and `thing` is deleted.
template <class T>
Napi::Value owned(Napi::Env env, T thing) {
  auto external = std::make_unique<T>(std::move(thing));
  const auto value = Napi::External<T>::New(env, external.get(), [](Napi::Env, T* last) { delete last; });
  external.release();
  return value;
}

// Returns the handle in a JavaScript value that deviceArray() made. Throws if the array was released.
DeviceArrayHandle read_device_array(const Napi::Value& value);
Function read_function(const Napi::Object& spec);
AdvantageFunction read_advantage_function(const Napi::Object& spec);
int read_estimator(const Napi::Value& name);
BatchView read_batch(const Napi::Object& object);
// The functions from here on each read one thing of a batch. `code` is the column's code in
// NativeBatch.dtypes.
Layout read_layout(const Napi::Value& rows, const Napi::Value& columns, const Napi::Value& offsets);
// Returns a view without data.
ColumnView view_of(Napi::Env env, int code);
ColumnView read_column(const Napi::Value& value, int code, const Layout& layout);
AdvantageBatch read_advantage_batch(const Napi::Object& object);
double number_or_zero(const Napi::Value& value);

// Returns a pointer to the elements of a typed array. Throws an error if the array has another type or
// length. `what` names the array in the error.
void* elements(const Napi::Value& value, napi_typedarray_type type, int64_t length, const char* what);

template <class T>
constexpr napi_typedarray_type kArrayOf = napi_float64_array;
template <>
inline constexpr napi_typedarray_type kArrayOf<float> = napi_float32_array;
template <>
inline constexpr napi_typedarray_type kArrayOf<int32_t> = napi_int32_array;
template <>
inline constexpr napi_typedarray_type kArrayOf<uint32_t> = napi_uint32_array;
template <>
inline constexpr napi_typedarray_type kArrayOf<uint16_t> = napi_uint16_array;
template <>
inline constexpr napi_typedarray_type kArrayOf<uint8_t> = napi_uint8_array;
template <class T>
T* array_of(const Napi::Value& value, int64_t length, const char* what) {
  return static_cast<T*>(elements(value, kArrayOf<T>, length, what));
}
// Do the same for a property of an object. array_if_any() returns null if the property is undefined.
template <class T>
T* array_in(const Napi::Object& object, const char* name, int64_t length) {
  return array_of<T>(object.Get(name), length, name);
}
template <class T>
T* array_if_any(const Napi::Object& object, const char* name, int64_t length) {
  const Napi::Value value = object.Get(name);
  return value.IsUndefined() ? nullptr : array_of<T>(value, length, name);
}

// Returns the array that receives a gradient, or none if the value is undefined. `code` is its code in
// NativeBatch.dtypes.
inline GradientView gradient_if_any(const Napi::Value& value, int code, int64_t tokens, const char* what) {
  const DType dtype = view_of(value.Env(), code).dtype;
  if (dtype != DType::kFloat32) return {array_of<uint16_t>(value, tokens, what), dtype};
  return value.IsUndefined() ? nullptr : array_of<float>(value, tokens, what);
}
// The codes in NativeCall.gradDtypes.
struct GradientCodes {
  int grad, grad_entropy;
};
inline GradientCodes gradient_codes(Napi::Env env, double codes) {
  if (!(codes >= 0 && codes < 64)) refuse(env, "unknown dtype code");
  const int both = static_cast<int>(codes);
  return {both & 7, both >> 3};
}
// The number of float64 numbers in a spread.
constexpr int64_t kSpreadLength = sizeof(Spread) / sizeof(double);
// Returns the flag that aborts a call; null if the call has none.
inline const int32_t* abort_flag_in(const Napi::Object& call) {
  return array_if_any<int32_t>(call, "abort", 1);
}
// Returns the stream of a BigInt, or none if the value is undefined.
cuda::CallerStream stream_if_any(const Napi::Value& value);

// The results and the seed of a call of advantages().
struct AdvantageCall {
  AdvantageOutputs outputs;
  uint64_t seed = 0;
  double* not_finite_row = nullptr;
};
AdvantageCall read_advantage_call(const AdvantageFunction& function, int64_t rows, int64_t tokens,
                                  const Napi::Object& object);

// A call of evaluate() without its function and its batch.
struct Call {
  Coefficients coefficients;
  Normalizer normalizer;
  Outputs outputs;
  // Of a resident batch: BatchView::repeats, a mask and log-probabilities that replace the batch's own,
  // and the column kTokenWeights.
  const uint32_t* repeats = nullptr;
  const uint8_t* mask = nullptr;
  const float* weights = nullptr;
  const float* logprob = nullptr;
  // Arrays on a device that receive gradients instead of outputs.grad and outputs.grad_entropy. Null if not
  // wanted.
  DeviceArrayHandle device_grad, device_grad_entropy;
  // Whether outputs.grad is in memory of the device, as in cuda::Call.
  bool grad_there = false;
  cuda::IpcHandle grad_handle;
  bool grad_stays = false;   // leaves the gradient on the device; for measurements
  double* timing = nullptr;  // [2] milliseconds of all passes and of the token pass; for measurements
  // Only for a resident batch: the function that computes the advantages before the loss is computed. Null if
  // the loss reads the batch's own column of advantages.
  const AdvantageFunction* advantage = nullptr;
  AdvantageCall advantage_call;
};
// Reads what only resident batches may have if `resident` is set.
Call read_call(const PreparedFunction& function, int64_t rows, int64_t tokens, bool resident,
               const Napi::Object& object);

// Tells which inputs of advantage functions a batch has.
struct AdvantagePresence {
  unsigned columns = 0;  // bit c: AdvantageColumn c, one value per token
  bool mask = false, rewards = false, baselines = false, groups = false, runs = false;
  bool named_rewards = false;
};
AdvantagePresence presence_of(const AdvantageBatch& batch);
// Throws an error if the batch lacks an input that the advantage function needs. `there` tells which inputs
// the batch has.
void check_advantage_inputs(Napi::Env env, const AdvantageFunction& function, const AdvantagePresence& there);

// Throws an error if a needed column is not present, or if a mask is needed and missing. `needed` and
// `present` are sets of columns.
void check_columns(Napi::Env env, unsigned needed, unsigned present, bool mask_needed, bool has_mask);
unsigned present_columns(const BatchView& batch);
// Throws an error if a row column that the function's program reads is not present. `present` is a set of row
// columns.
void check_row_columns(Napi::Env env, const PreparedFunction& function, unsigned present);
unsigned present_row_columns(const BatchView& batch);

// Runs the body of a function that JavaScript calls. If memory runs out, throws an error with the code
// ERR_OUT_OF_MEMORY.
template <class Body>
Napi::Value guarded(const Napi::CallbackInfo& info, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    throw coded_error(info.Env(), "ERR_OUT_OF_MEMORY", "out of memory");
  }
}

}  // namespace policy_loss::addon

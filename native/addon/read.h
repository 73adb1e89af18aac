// Converts JavaScript values to the engines' views.
//
// lib/ validates arguments and reports errors to users. The checks here only protect memory.
#pragma once

#include <napi.h>

#include <memory>
#include <string>

#include "cpu/engine.h"
#include "engine/advantages.h"

namespace policy_loss::addon {

using FunctionHandle = std::shared_ptr<const PreparedFunction>;

[[noreturn]] void refuse(Napi::Env env, const std::string& what);

// Returns an error with one of the codes of lib/core/errors.ts.
Napi::Error coded_error(Napi::Env env, const char* code, const std::string& what);

// Returns a JavaScript value that owns the thing. If the thread is being terminated, creating the value
// throws and the thing is deleted.
template <class T>
Napi::Value owned(Napi::Env env, T thing) {
  auto kept = std::make_unique<T>(std::move(thing));
  const auto value = Napi::External<T>::New(env, kept.get(), [](Napi::Env, T* last) { delete last; });
  kept.release();
  return value;
}

Function read_function(const Napi::Object& spec);
AdvantageFunction read_advantage_function(const Napi::Object& spec);
int read_estimator(const Napi::Value& name);
BatchView read_batch(const Napi::Object& object);
// Read parts of a batch. `code` is the column's code in NativeBatch.dtypes.
Layout read_layout(const Napi::Value& rows, const Napi::Value& columns, const Napi::Value& offsets);
ColumnView read_column(const Napi::Value& value, int code, const Layout& layout);
AdvantageBatch read_advantage_batch(const Napi::Object& object);
double number_or_zero(const Napi::Value& value);

// Returns the elements of a typed array. Throws unless the array has this type and length.
void* elements(const Napi::Value& value, napi_typedarray_type type, int64_t length, const char* what);
float* floats(const Napi::Value& value, int64_t length, const char* what);
// Returns null if the value is undefined.
float* floats_if_any(const Napi::Value& value, int64_t length, const char* what);
const int32_t* flag_if_any(const Napi::Value& value);

// The `call` argument of advantages and advantagesSync.
struct AdvantageCall {
  AdvantageOutputs outputs;
  uint64_t seed = 0;
  double* not_finite_row = nullptr;
  const int32_t* abort = nullptr;
};
AdvantageCall read_advantage_call(const AdvantageFunction& function, int64_t rows, int64_t tokens,
                                  const Napi::Object& object);

// The `call` argument of evaluate and evaluateSync.
struct Call {
  Coefficients coefficients;
  Normalizer normalizer;
  Outputs outputs;
  const uint32_t* repeats = nullptr;  // BatchView::repeats of a resident batch
  const int32_t* abort = nullptr;
  bool grad_stays = false;   // leaves the gradient on the device; for measurements
  double* timing = nullptr;  // [2] milliseconds of all passes and of the token pass; for measurements
  // For a resident batch: the function that computes the advantages first. Null if the batch's own column is
  // used.
  const AdvantageFunction* advantage = nullptr;
  AdvantageCall advantage_call;
};
Call read_call(const Function& function, int64_t rows, int64_t tokens, const Napi::Object& object);

// Which inputs of advantage functions a batch has.
struct AdvantagePresence {
  unsigned columns = 0;  // bit c: AdvantageColumn c, one value per token
  bool mask = false, rewards = false, baselines = false, groups = false, runs = false;
};
AdvantagePresence presence_of(const AdvantageBatch& batch);
// Throws if a batch lacks an input of the advantage function.
void check_advantage_inputs(Napi::Env env, const AdvantageFunction& function, const AdvantagePresence& there);

// Throws if a needed column is missing, or the mask if it is needed.
void check_columns(Napi::Env env, unsigned needed, unsigned present, bool mask_needed, bool has_mask);
unsigned present_columns(const BatchView& batch);

// Runs the body of a JavaScript call. If memory runs out, throws an error with the code ERR_OUT_OF_MEMORY.
template <class Body>
Napi::Value guarded(const Napi::CallbackInfo& info, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    throw coded_error(info.Env(), "ERR_OUT_OF_MEMORY", "out of memory");
  }
}

}  // namespace policy_loss::addon

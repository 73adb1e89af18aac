// From JavaScript values to the engines' views and back.
//
// lib/ has checked what it passes in and worded the errors for people; the checks here only keep memory safe
// from a caller that has not.
#pragma once

#include <napi.h>

#include <memory>
#include <string>

#include "cpu/engine.h"
#include "engine/advantages.h"

namespace policy_loss::addon {

using FunctionHandle = std::shared_ptr<const PreparedFunction>;

[[noreturn]] void refuse(Napi::Env env, const std::string& what);

// An error with one of the codes of lib/errors.ts.
Napi::Error coded_error(Napi::Env env, const char* code, const std::string& what);

// A value of JavaScript's that owns this. There is none where the thread that would own it is being
// terminated.
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
// The parts of one: its rows, and a column by its code in NativeBatch.dtypes.
Layout read_layout(const Napi::Value& rows, const Napi::Value& columns, const Napi::Value& offsets);
ColumnView read_column(const Napi::Value& value, int code, const Layout& layout);
AdvantageBatch read_advantage_batch(const Napi::Object& object);
double number_or_zero(const Napi::Value& value);

// The elements of a typed array, after a look at their type and number.
void* elements(const Napi::Value& value, napi_typedarray_type type, int64_t length, const char* what);
float* floats(const Napi::Value& value, int64_t length, const char* what);
// Likewise, null where the value is undefined.
float* floats_if_any(const Napi::Value& value, int64_t length, const char* what);
const int32_t* flag_if_any(const Napi::Value& value);

// The third argument of advantages and advantagesSync.
struct AdvantageCall {
  AdvantageOutputs outputs;
  uint64_t seed = 0;
  double* not_finite_row = nullptr;
  const int32_t* abort = nullptr;
};
AdvantageCall read_advantage_call(const AdvantageFunction& function, int64_t rows, int64_t tokens,
                                  const Napi::Object& object);

// The third argument of evaluate and evaluateSync.
struct Call {
  Coefficients coefficients;
  Normalizer normalizer;
  Outputs outputs;
  const uint32_t* repeats = nullptr;  // BatchView::repeats of a resident batch
  const int32_t* abort = nullptr;
  bool grad_stays = false;   // on the device; for measurements
  double* timing = nullptr;  // two: milliseconds on the device of all passes and of the token pass
  // Of a resident batch: the advantages that are computed first; null: they are the batch's own.
  const AdvantageFunction* advantage = nullptr;
  AdvantageCall advantage_call;
};
Call read_call(const Function& function, int64_t rows, int64_t tokens, const Napi::Object& object);

// Which inputs of advantage functions a batch has, wherever it lies.
struct AdvantagePresence {
  unsigned columns = 0;  // bit c: AdvantageColumn c, one value per token
  bool mask = false, rewards = false, baselines = false, groups = false, runs = false;
};
AdvantagePresence presence_of(const AdvantageBatch& batch);
// Throws unless a batch has what an advantage function reads.
void check_advantage_inputs(Napi::Env env, const AdvantageFunction& function, const AdvantagePresence& there);

// Throws unless a batch with these columns has all that are needed, and the mask where that is.
void check_columns(Napi::Env env, unsigned needed, unsigned present, bool mask_needed, bool has_mask);
unsigned present_columns(const BatchView& batch);

// Runs what a JavaScript call asks for; memory that runs out becomes an error with its code.
template <class Body>
Napi::Value guarded(const Napi::CallbackInfo& info, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    throw coded_error(info.Env(), "ERR_OUT_OF_MEMORY", "out of memory");
  }
}

}  // namespace policy_loss::addon

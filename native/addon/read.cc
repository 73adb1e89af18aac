#include "addon/read.h"

#include <algorithm>
#include <stdexcept>

#include "addon/device_work.h"

namespace policy_loss::addon {
namespace {

// A limit on the number of tokens. JavaScript represents every integer up to this one exactly, and no array
// has that many elements.
constexpr int64_t kMostTokens = int64_t{1} << 53;

// Returns a text. Refuses other values: converting an array to a text would take as long as the array says.
std::string text_of(const Napi::Value& value) {
  if (!value.IsString()) refuse(value.Env(), "expected a text");
  return value.As<Napi::String>().Utf8Value();
}

// Returns the index of the entry whose name is `name`. If there is none, throws an error in which `what` says
// what kind of entry was wanted, such as "loss".
template <class Names, class NameOf>
int index_of(const Names& names, const Napi::Value& name, const char* what, NameOf name_of) {
  const std::string wanted = text_of(name);
  int index = 0;
  for (const auto& entry : names) {
    if (wanted == name_of(entry)) return index;
    ++index;
  }
  refuse(name.Env(), std::string("unknown ") + what + ": " + wanted);
}

Aggregation read_aggregation(const Napi::Value& value) {
  return static_cast<Aggregation>(
      index_of(kAggregationNames, value, "aggregation", [](const char* name) { return std::string(name); }));
}

double read_option(const OptionInfo& option, const Napi::Value& value) {
  const Napi::Env env = value.Env();
  if (option.choices) {
    const std::string word = text_of(value);
    for (int i = 0; option.choices[i]; ++i)
      if (word == option.choices[i]) return i;
    refuse(env, std::string(option.name) + " cannot be " + word);
  }
  if (value.IsBoolean()) return value.As<Napi::Boolean>().Value() ? 1.0 : 0.0;
  if (!value.IsNumber()) refuse(env, std::string(option.name) + " must be a number");
  return value.As<Napi::Number>().DoubleValue();
}

void read_loss(const Napi::Object& object, Function* function) {
  function->loss =
      index_of(losses(), object.Get("name"), "loss", [](const LossInfo& info) { return info.name; });
  const Napi::Object options = object.Get("options").As<Napi::Object>();
  for (const OptionInfo& option : losses()[function->loss].options)
    function->options.push_back(read_option(option, options.Get(option.name)));
}

program::Program read_program(const Napi::Object& object) {
  const Napi::Env env = object.Env();
  const Napi::Value code = object.Get("code");
  const Napi::Value constants = object.Get("constants");
  if (!code.IsTypedArray() || !constants.IsTypedArray()) refuse(env, "program: a member is missing");
  program::Encoded encoded;
  encoded.code_length = static_cast<int64_t>(code.As<Napi::TypedArray>().ElementLength());
  encoded.code = array_of<int32_t>(code, encoded.code_length, "code");
  encoded.constant_count = static_cast<int64_t>(constants.As<Napi::TypedArray>().ElementLength());
  encoded.constants = array_of<double>(constants, encoded.constant_count, "constants");
  encoded.registers = number_or_zero(object.Get("registers"));
  encoded.row_values = number_or_zero(object.Get("rowValues"));
  encoded.batch_values = number_or_zero(object.Get("batchValues"));
  encoded.metrics = number_or_zero(object.Get("metrics"));
  encoded.batch_metrics = number_or_zero(object.Get("batchMetrics"));
  encoded.all_rows = object.Get("allRows").ToBoolean();
  try {
    return program::Program(encoded);
  } catch (const std::invalid_argument& error) {
    refuse(env, error.what());
  }
}

ProgramMetric read_program_metric(const Napi::Value& value) {
  const Napi::Env env = value.Env();
  if (!value.IsObject()) refuse(env, "program: a metric is not an object");
  const Napi::Object object = value.As<Napi::Object>();
  const std::string per = text_of(object.Get("per"));
  ProgramMetric metric{text_of(object.Get("name")), Metric::kTokenMean};
  if (per == "row")
    metric.source = Metric::kMeanOfRows;
  else if (per == "batch")
    metric.source = Metric::kBatch;
  else if (per != "token")
    refuse(env, "program: a metric cannot be per " + per);
  return metric;
}

void read_program_loss(const Napi::Object& object, Function* function) {
  const Napi::Env env = object.Env();
  const Napi::Value both = object.Get("program");
  const Napi::Value list = object.Get("metrics");
  const Napi::Value with_grad = both.As<Napi::Object>().Get("withGrad");
  const Napi::Value without_grad = both.As<Napi::Object>().Get("withoutGrad");
  if (!with_grad.IsObject() || !without_grad.IsObject() || !list.IsArray())
    refuse(env, "program: a member is missing");
  program::Program grad = read_program(with_grad.As<Napi::Object>());
  program::Program no_grad = read_program(without_grad.As<Napi::Object>());
  const uint32_t count = list.As<Napi::Array>().Length();
  for (const program::Program* program : {&grad, &no_grad})
    if (static_cast<uint32_t>(program->view().metrics + program->view().batch_metrics) != count)
      refuse(env, "program: the number of metrics is wrong");
  std::vector<ProgramMetric> metrics;
  int batch_metrics = 0;
  for (uint32_t i = 0; i < count; ++i) {
    metrics.push_back(read_program_metric(list.As<Napi::Array>().Get(i)));
    batch_metrics += metrics.back().source == Metric::kBatch ? 1 : 0;
  }
  if (grad.view().batch_metrics != batch_metrics || no_grad.view().batch_metrics != batch_metrics)
    refuse(env, "program: the number of metrics of the batch is wrong");
  if (!grad.view().has_grad || no_grad.view().has_grad || no_grad.view().has_other_grad)
    refuse(env, "program: a gradient is wrong");
  function->loss = kProgram;
  function->program_loss =
      std::make_shared<const ProgramLoss>(std::move(grad), std::move(no_grad), std::move(metrics));
}

// Returns the spreads of some rows, each of which is kSpreadLength numbers; null if the property is
// undefined.
Spread* spreads_if_any(const Napi::Object& object, const char* name, int64_t rows) {
  return reinterpret_cast<Spread*>(array_if_any<double>(object, name, kSpreadLength * rows));
}

// Reads those members of an advantage function's call that do not depend on whether a loss is computed in the
// same call.
AdvantageCall read_advantage_basics(const AdvantageFunction& function, const Napi::Object& object) {
  AdvantageCall call;
  const int64_t values = static_cast<int64_t>(advantage_value_names(function).size());
  call.outputs.values = array_in<double>(object, "values", values);
  call.not_finite_row = array_in<double>(object, "notFiniteRow", 1);
  call.seed = static_cast<uint64_t>(object.Get("seed").ToNumber().Int64Value());
  return call;
}

}  // namespace

void refuse(Napi::Env env, const char* what) {
  throw Napi::TypeError::New(env, what);
}

Napi::Error coded_error(Napi::Env env, const char* code, const std::string& what) {
  Napi::Error error = Napi::Error::New(env, what);
  error.Set("code", Napi::String::New(env, code));
  return error;
}

Function read_function(const Napi::Object& spec) {
  Function function;
  const Napi::Value policy = spec.Get("policyLoss");
  if (policy.IsObject()) {
    const Napi::Object object = policy.As<Napi::Object>();
    if (object.Get("program").IsObject())
      read_program_loss(object, &function);
    else
      read_loss(object, &function);
    function.weighted = object.Get("weighted").ToBoolean();
    function.loss_aggregation[0] = read_aggregation(object.Get("aggregation"));
    const Napi::Value expert = object.Get("expertAggregation");
    function.loss_aggregation[1] =
        expert.IsString() ? read_aggregation(expert) : function.loss_aggregation[0];
  }
  const Napi::Value kl = spec.Get("kl");
  if (kl.IsObject()) {
    const Napi::Object object = kl.As<Napi::Object>();
    function.kl = index_of(kl_estimators(), object.Get("name"), "KL estimator",
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

AdvantageFunction read_advantage_function(const Napi::Object& spec) {
  const AdvantageInfo& info = advantages()[index_of(advantages(), spec.Get("name"), "advantage function",
                                                    [](const AdvantageInfo& entry) { return entry.name; })];
  AdvantageFunction function{info.shape, info.index, {}};
  const Napi::Object options = spec.Get("options").As<Napi::Object>();
  for (const OptionInfo& option : info.options)
    function.options.push_back(read_option(option, options.Get(option.name)));
  return function;
}

int read_estimator(const Napi::Value& name) {
  return index_of(kl_estimators(), name, "KL estimator", [](const KlInfo& info) { return info.name; });
}

void* elements(const Napi::Value& value, napi_typedarray_type type, int64_t length, const char* what) {
  const Napi::Env env = value.Env();
  napi_typedarray_type found;
  size_t found_length = 0;
  void* data = nullptr;
  if (napi_get_typedarray_info(env, value, &found, &found_length, &data, nullptr, nullptr) != napi_ok ||
      found != type || static_cast<int64_t>(found_length) != length)
    refuse(env, std::string(what) + " is not the array it should be");
  // An empty array may have a null pointer. Callers would take it for a missing array, so they get a pointer
  // to something else.
  static double nothing = 0;
  return length > 0 ? data : &nothing;
}

cuda::CallerStream stream_if_any(const Napi::Value& value) {
  if (!value.IsBigInt()) return {};
  bool lossless = false;
  return {true, value.As<Napi::BigInt>().Uint64Value(&lossless)};
}

Layout read_layout(const Napi::Value& rows, const Napi::Value& row_length, const Napi::Value& offsets) {
  const Napi::Env env = rows.Env();
  Layout layout;
  layout.rows = rows.ToNumber().Int64Value();
  layout.row_length = row_length.ToNumber().Int64Value();
  if (layout.rows < 0 || layout.row_length < 0) refuse(env, "rows and rowLength must not be negative");
  if (layout.rows > kMostTokens || layout.row_length > kMostTokens ||
      (offsets.IsUndefined() && layout.rows > 0 && layout.row_length > kMostTokens / layout.rows))
    refuse(env, "rows times rowLength is too large");
  if (offsets.IsUndefined()) return layout;
  layout.offsets = array_of<int32_t>(offsets, layout.rows + 1, "offsets");
  if (layout.offsets[0] != 0) refuse(env, "offsets must begin with 0");
  for (int64_t row = 0; row < layout.rows; ++row)
    if (layout.length(row) < 0 || layout.length(row) > layout.row_length)
      refuse(env, "offsets must not decrease, and no row may be longer than rowLength");
  return layout;
}

ColumnView view_of(Napi::Env env, int code) {
  if (code < 0 || code > 7 || (code & 3) > static_cast<int>(DType::kBFloat16))
    refuse(env, "unknown dtype code");
  ColumnView view;
  view.dtype = static_cast<DType>(code & 3);
  view.per_row = (code & 4) != 0;
  return view;
}

ColumnView read_column(const Napi::Value& value, int code, const Layout& layout) {
  ColumnView view = view_of(value.Env(), code);
  view.data = elements(value, view.dtype == DType::kFloat32 ? napi_float32_array : napi_uint16_array,
                       view.per_row ? layout.rows : layout.tokens(), "a column");
  return view;
}

// Reads the columns with one float64 number per row, of which a batch may have none.
void read_row_columns(const Napi::Value& value, BatchView* batch) {
  if (!value.IsArray()) return;
  const Napi::Array data = value.As<Napi::Array>();
  const uint32_t given = std::min<uint32_t>(data.Length(), kRowColumns);
  for (uint32_t i = 0; i < given; ++i) {
    const Napi::Value column = data[i];
    if (column.IsUndefined()) continue;
    const int64_t rows = batch->layout.rows;
    const auto* const numbers = array_of<double>(column, rows, "rowData");
    batch->row_column[i] = numbers;
    const bool is_list = i == kNextInGroup || i == kNextInPair;
    for (int64_t row = 0; is_list && row < rows; ++row)
      if (!(numbers[row] >= 0 && numbers[row] < static_cast<double>(rows)))
        refuse(value.Env(), "the next row of a group does not exist");
  }
}

BatchView read_batch(const Napi::Object& object) {
  BatchView batch;
  const Layout& layout = batch.layout =
      read_layout(object.Get("rows"), object.Get("rowLength"), object.Get("offsets"));
  const int64_t tokens = layout.tokens();
  const Napi::Array data = object.Get("data").As<Napi::Array>();
  const Napi::Array dtypes = object.Get("dtypes").As<Napi::Array>();
  const uint32_t given = std::min<uint32_t>(data.Length(), kColumns);
  for (uint32_t i = 0; i < given; ++i) {
    const Napi::Value column = data[i];
    if (column.IsUndefined()) continue;
    const Napi::Value code = dtypes[i];
    batch.column[i] = read_column(column, code.ToNumber().Int32Value(), layout);
  }
  batch.mask = array_if_any<uint8_t>(object, "mask", tokens);
  batch.expert = array_if_any<uint8_t>(object, "expert", layout.rows);
  batch.repeats = array_if_any<uint32_t>(object, "repeats", layout.rows);
  read_row_columns(object.Get("rowData"), &batch);
  return batch;
}

AdvantageBatch read_advantage_batch(const Napi::Object& object) {
  AdvantageBatch batch;
  batch.tokens = read_batch(object);
  const int64_t rows = batch.tokens.layout.rows;
  batch.rewards = array_if_any<double>(object, "rewards", rows);
  batch.baselines = array_if_any<double>(object, "baselines", rows);
  batch.groups = array_if_any<int32_t>(object, "groups", rows);
  batch.runs = array_if_any<int32_t>(object, "runs", rows);
  batch.row_tokens = array_if_any<double>(object, "rowTokens", rows);
  batch.spread = spreads_if_any(object, "spread", 1);
  const Napi::Value weights = object.Get("rewardWeights");
  if (!weights.IsTypedArray()) return batch;
  batch.named = static_cast<int64_t>(weights.As<Napi::TypedArray>().ElementLength());
  batch.reward_weights = array_of<double>(weights, batch.named, "rewardWeights");
  batch.named_rewards = array_in<double>(object, "namedRewards", batch.named * rows);
  return batch;
}

double number_or_zero(const Napi::Value& value) {
  return value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : 0.0;
}

DeviceArrayHandle read_device_array(const Napi::Value& value) {
  const DeviceArrayHandle array = *value.As<Napi::External<DeviceArrayHandle>>().Data();
  if (!array) refuse(value.Env(), "the array was released");
  return array;
}

Call read_call(const PreparedFunction& function, int64_t rows, int64_t tokens, bool resident,
               const Napi::Object& object) {
  Call call;
  call.coefficients.mu = number_or_zero(object.Get("mu"));
  call.coefficients.kl = number_or_zero(object.Get("klCoef"));
  call.coefficients.entropy = number_or_zero(object.Get("entropyCoef"));
  call.outputs.values = array_in<double>(object, "values", function.values());
  const GradientCodes codes = gradient_codes(object.Env(), number_or_zero(object.Get("gradDtypes")));
  const auto read_gradient = [&](const char* name, int code, GradientView* on_host,
                                 DeviceArrayHandle* on_device) {
    const Napi::Value value = object.Get(name);
    if (value.IsExternal())
      *on_device = read_device_array(value);
    else
      *on_host = gradient_if_any(value, code, tokens, name);
  };
  if (const Napi::Value there = object.Get("grad"); there.IsBigInt()) {
    call.grad_there = true;
    call.outputs.grad.data = address_in(there);
    call.outputs.grad.dtype = view_of(object.Env(), codes.grad).dtype;
    call.grad_handle = handle_if_any(object.Get("gradHandle"));
  } else {
    read_gradient("grad", codes.grad, &call.outputs.grad, &call.device_grad);
  }
  read_gradient("gradEntropy", codes.grad_entropy, &call.outputs.grad_entropy, &call.device_grad_entropy);
  call.outputs.grad_log_z = array_if_any<float>(object, "gradLogZ", rows);
  if (const double* counts = array_if_any<double>(object, "normalizer", kCounts))
    call.normalizer = {true, read_counts(counts)};
  call.outputs.counts = array_if_any<double>(object, "counts", kCounts);
  call.outputs.part = array_if_any<double>(object, "part", kPartLength);
  if (!resident) return call;
  call.repeats = array_if_any<uint32_t>(object, "repeats", rows);
  call.mask = array_if_any<uint8_t>(object, "mask", tokens);
  call.weights = array_if_any<float>(object, "weights", tokens);
  call.logprob = array_if_any<float>(object, "logprob", tokens);
  const Napi::Value advantage = object.Get("advantage");
  if (advantage.IsObject()) {
    const Napi::Object first = advantage.As<Napi::Object>();
    call.advantage = first.Get("fn").As<Napi::External<AdvantageFunction>>().Data();
    call.advantage_call = read_advantage_basics(*call.advantage, first);
  }
  return call;
}

AdvantageCall read_advantage_call(const AdvantageFunction& function, int64_t rows, int64_t tokens,
                                  const Napi::Object& object) {
  AdvantageCall call = read_advantage_basics(function, object);
  AdvantageOutputs& outputs = call.outputs;
  outputs.advantages = array_if_any<float>(object, "advantages", tokens);
  outputs.returns = array_if_any<float>(object, "returns", tokens);
  outputs.scores = array_if_any<float>(object, "scores", rows);
  outputs.spreads = spreads_if_any(object, "spreads", rows);
  if (!outputs.advantages && !(function.shape == AdvantageShape::kGroup && outputs.scores) &&
      !(function.shape == AdvantageShape::kRecurrence && outputs.spreads))
    refuse(object.Env(), "advantages is missing, and what can replace it is too");
  outputs.repeats = array_if_any<uint32_t>(object, "repeats", rows);
  return call;
}

AdvantagePresence presence_of(const AdvantageBatch& batch) {
  AdvantagePresence there;
  for (int i = 0; i < kColumns; ++i)
    if (batch.tokens.column[i].data && !batch.tokens.column[i].per_row) there.columns |= 1u << i;
  there.mask = batch.tokens.mask != nullptr;
  there.rewards = batch.rewards != nullptr;
  there.baselines = batch.baselines != nullptr;
  there.groups = batch.groups != nullptr;
  there.runs = batch.runs != nullptr;
  there.named_rewards = batch.named_rewards != nullptr;
  return there;
}

void check_advantage_inputs(Napi::Env env, const AdvantageFunction& function,
                            const AdvantagePresence& there) {
  const auto column = [&](AdvantageColumn c) { return (there.columns >> c & 1) != 0; };
  const bool rewarded = there.rewards || column(kTokenLevelRewardsInput);
  bool complete = there.mask;
  const int index = function.index;
  const double* const options = function.options.data();
  switch (function.shape) {
    case AdvantageShape::kGroup:
      with_function(
          index, options,
          [&]<class F>(const F& f) {
            constexpr GroupTraits traits = F::traits;
            const bool named = traits.has_reward_keys && there.named_rewards;
            complete =
                complete && there.groups && (named || (traits.sums_token_rewards ? rewarded : there.rewards));
            if (traits.by_runs) complete = complete && there.runs;
            if constexpr (traits.has_rank_penalty)
              complete = complete && (f.rank_penalty == 0 || column(kOldLogprobInput));
          },
          GroupAdvantages{});
      break;
    case AdvantageShape::kRecurrence:
      with_function(
          index, options,
          [&]<class F>(const F&) {
            constexpr RecurrenceTraits traits = F::traits;
            complete = complete && rewarded && (!traits.reads_values || column(kValuesInput)) &&
                       (!traits.reads_baseline || there.baselines);
          },
          RecurrentAdvantages{});
      break;
    case AdvantageShape::kDistill:
      complete = complete && column(kOldLogprobInput) && column(kTeacherLogprobInput);
      break;
    case AdvantageShape::kBaseline:
      complete =
          complete && there.groups && rewarded && column(kOldLogprobInput) && column(kSumPiSquaredInput);
      break;
  }
  if (!complete) refuse(env, "an input of the advantage function is missing");
}

unsigned present_columns(const BatchView& batch) {
  unsigned present = 0;
  for (int i = 0; i < kColumns; ++i)
    if (batch.column[i].data) present |= 1u << i;
  return present;
}

unsigned present_row_columns(const BatchView& batch) {
  unsigned present = 0;
  for (int c = 0; c < kRowColumns; ++c)
    if (batch.row_column[c]) present |= reads(c);
  return present;
}

void check_row_columns(Napi::Env env, const PreparedFunction& function, unsigned present) {
  for (const bool grad : {false, true}) {
    const program::Program* const program = function.program(grad);
    if (program && (program->view().row_columns & ~present) != 0) refuse(env, "a row column is missing");
  }
}

void check_columns(Napi::Env env, unsigned needed, unsigned present, bool mask_needed, bool has_mask) {
  if ((needed & ~present) != 0) refuse(env, "a column is missing");
  if (mask_needed && !has_mask) refuse(env, "mask is missing");
}

}  // namespace policy_loss::addon

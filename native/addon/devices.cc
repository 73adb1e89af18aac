#include "addon/devices.h"

#include <utility>

#include "addon/device_work.h"
#include "cpu/pool.h"
#include "cuda/request.h"

namespace policy_loss::addon {
namespace {

struct Milliseconds {
  float all = 0, token_pass = 0;
};

template <class Place>
int device_of(const Place& place) {
  return place.resident ? cuda::resident_info(place.resident.get()).device : place.device;
}

AdvantagePresence presence_of(const cuda::ResidentInfo& info) {
  return {info.advantage_present, info.mask, info.rewards, info.baselines, info.groups, info.runs};
}

// The advantage function that a call computes on a device, and what the device returns for it.
struct AdvantageWork {
  AdvantageFunction function;
  cuda::AdvantageIngredients ingredients;
  NonFiniteValue not_finite;

  // Converts a call from JavaScript to a call on the device, which will write to the outputs of the former
  // and to this object. `rows` and `groups` are the numbers of rows and groups in the batch.
  cuda::AdvantageCall on_device(const AdvantageCall& call, int64_t rows, int64_t groups) {
    cuda::AdvantageCall result;
    result.not_finite = &not_finite;
    result.advantages = call.outputs.advantages;
    result.returns = call.outputs.returns;
    result.scores = call.outputs.scores;
    result.repeats = call.outputs.repeats;
    ingredients.ask(function, rows, groups, &result);
    return result;
  }

  // Writes the metrics to the call's outputs and returns true. If an input value is not finite, writes the
  // index of its row instead and returns false.
  bool finish(const AdvantageCall& call) const {
    const bool finite = not_finite.input == NonFiniteInput::kNone;
    if (finite)
      ingredients.finish(function, call.outputs.values);
    else
      *call.not_finite_row = static_cast<double>(not_finite.row);
    return finite;
  }
};

// A task for the CPU engine's threads. It consists of the work items that the CUDA engine shares out, such as
// copying host memory.
class SharedWork : public cpu::Task {
 public:
  SharedWork(int64_t count, void (*item)(void*, int64_t), void* what)
      : count_(count), item_(item), what_(what) {}

  void done() override {}

 private:
  int64_t open_phase() override { return std::exchange(count_, 0); }
  void work(int64_t item) override { item_(what_, item); }

  int64_t count_;
  void (*const item_)(void*, int64_t);
  void* const what_;
};

}  // namespace

ResidentHandle read_resident(const Napi::Value& batch) {
  const ResidentHandle resident = *batch.As<Napi::External<ResidentHandle>>().Data();
  if (!resident) refuse(batch.Env(), "the batch was released");
  return resident;
}

void share_devices_work() {
  cuda::share_work_by([](int64_t count, void (*item)(void*, int64_t), void* what) {
    cpu::Pool::shared().run(std::make_shared<SharedWork>(count, item, what));
  });
}

int64_t Place::rows() const {
  return resident ? cuda::resident_info(resident.get()).rows : batch.layout.rows;
}

int64_t Place::tokens() const {
  return resident ? cuda::resident_info(resident.get()).tokens : batch.layout.tokens();
}

unsigned Place::row_columns() const {
  return resident ? cuda::resident_info(resident.get()).row_present : present_row_columns(batch);
}

Place read_place(const Napi::Object& call) {
  Place place;
  place.stream = stream_if_any(call.Get("stream"));
  const Napi::Value batch = call.Get("batch");
  if (batch.IsExternal()) {
    place.resident = read_resident(batch);
    return place;
  }
  place.batch = read_batch(batch.As<Napi::Object>());
  const Napi::Value device = call.Get("device");
  if (!device.IsUndefined()) place.device = device.ToNumber().Int32Value();
  return place;
}

void check_place(Napi::Env env, const Place& place, unsigned columns, bool mask_needed) {
  if (place.resident) {
    const cuda::ResidentInfo info = cuda::resident_info(place.resident.get());
    check_columns(env, columns, info.present, mask_needed, info.mask);
  } else if (place.tokens() > 0) {
    unsigned present = present_columns(place.batch);
    for (int c = 0; c < kColumns; ++c)
      if (place.there.column[c].data || place.there.handle[c].given) present |= reads(c);
    check_columns(env, columns, present, mask_needed, place.batch.mask != nullptr);
  }
}

Napi::Value evaluate_on_cuda(const Napi::Object& object, const FunctionHandle& function, const Place& place,
                             const Call& call) {
  const Napi::Env env = object.Env();
  auto work = std::make_shared<Work>();
  auto result = std::make_shared<cuda::Result>();
  auto milliseconds = std::make_shared<Milliseconds>();
  auto advantage = std::make_shared<AdvantageWork>();
  if (call.advantage) {
    check_advantage_inputs(env, *call.advantage, presence_of(cuda::resident_info(place.resident.get())));
    advantage->function = *call.advantage;
  }
  work->device = device_of(place);
  for (const DeviceArrayHandle& array : {call.device_grad, call.device_grad_entropy}) {
    if (!array) continue;
    const cuda::ArrayInfo to = cuda::array_info(array.get());
    if (to.device != device_of(place) || to.length != place.tokens())
      refuse(env, "a gradient's array is on another device, or has another length");
  }
  if (place.resident && call.grad_there) refuse(env, "a resident batch has a gradient of its own there");
  if (!place.resident) keep_arrays(object.Get("batch").As<Napi::Object>().Get("arrays"), &work->arrays);
  const bool with_grad = call.outputs.has_grad() || call.grad_there || call.grad_stays || call.device_grad ||
                         call.device_grad_entropy;
  const auto request_of_call = [=] {
    return cuda::request_of(*function, call.coefficients, call.normalizer, with_grad,
                            call.outputs.part != nullptr);
  };
  work->run = [=](const int32_t* abort, cuda::Problem* problem) {
    const cuda::Request request = request_of_call();
    cuda::Call on_device;
    on_device.result = result.get();
    on_device.grad = call.outputs.grad;
    on_device.grad_entropy = call.outputs.grad_entropy;
    on_device.grad_log_z = call.outputs.grad_log_z;
    on_device.columns = &place.there;
    on_device.grad_there = call.grad_there;
    on_device.grad_handle = call.grad_handle;
    on_device.device_grad = call.device_grad.get();
    on_device.device_grad_entropy = call.device_grad_entropy.get();
    on_device.grad_stays = call.grad_stays;
    on_device.repeats = call.repeats;
    on_device.mask = call.mask;
    on_device.weights = call.weights;
    on_device.logprob = call.logprob;
    on_device.passes_ms = call.timing ? &milliseconds->all : nullptr;
    on_device.token_pass_ms = call.timing ? &milliseconds->token_pass : nullptr;
    on_device.stream = place.stream;
    on_device.abort = abort;
    cuda::AdvantageRequest first;
    if (call.advantage) {
      const cuda::ResidentInfo resident = cuda::resident_info(place.resident.get());
      first = cuda::request_of(advantage->function, call.advantage_call.seed);
      on_device.advantage = &first;
      on_device.advantage_call =
          advantage->on_device(call.advantage_call, resident.rows, resident.group_count);
    }
    return place.resident ? cuda::evaluate(place.resident.get(), request, on_device, problem)
                          : cuda::evaluate_host(place.device, place.batch, request, on_device, problem);
  };
  work->value = [=](Napi::Env at) {
    if (call.advantage && !advantage->finish(call.advantage_call))
      return Napi::Number::New(at, -1 - static_cast<int>(advantage->not_finite.input));
    if (call.timing) {
      call.timing[0] = milliseconds->all;
      call.timing[1] = milliseconds->token_pass;
    }
    if (call.outputs.counts) write_counts(result->counts, call.outputs.counts);
    return Napi::Number::New(at, cuda::finish_result(*function, request_of_call(), *result, call.outputs));
  };
  return perform(object, work);
}

int64_t AdvantagePlace::rows() const {
  return resident ? cuda::resident_info(resident.get()).rows : batch.tokens.layout.rows;
}

int64_t AdvantagePlace::tokens() const {
  return resident ? cuda::resident_info(resident.get()).tokens : batch.tokens.layout.tokens();
}

AdvantagePlace read_advantage_place(const AdvantageFunction& function, const Napi::Object& call) {
  AdvantagePlace place;
  place.stream = stream_if_any(call.Get("stream"));
  const Napi::Value batch = call.Get("batch");
  if (batch.IsExternal()) {
    place.resident = read_resident(batch);
    check_advantage_inputs(batch.Env(), function, presence_of(cuda::resident_info(place.resident.get())));
    return place;
  }
  place.batch = read_advantage_batch(batch.As<Napi::Object>());
  const Napi::Value device = call.Get("device");
  if (!device.IsUndefined()) place.device = device.ToNumber().Int32Value();
  check_advantage_inputs(batch.Env(), function, presence_of(place.batch));
  return place;
}

Napi::Value advantages_on_cuda(const Napi::Object& object, const AdvantageFunction& function,
                               const AdvantagePlace& place, const AdvantageCall& call) {
  auto work = std::make_shared<Work>();
  auto advantage = std::make_shared<AdvantageWork>();
  advantage->function = function;
  work->device = device_of(place);
  work->run = [=](const int32_t* abort, cuda::Problem* problem) {
    const cuda::AdvantageRequest request = cuda::request_of(advantage->function, call.seed);
    if (place.resident) {
      const cuda::ResidentInfo resident = cuda::resident_info(place.resident.get());
      cuda::AdvantageCall on_device = advantage->on_device(call, resident.rows, resident.group_count);
      on_device.stream = place.stream;
      on_device.abort = abort;
      return cuda::advantages(place.resident.get(), request, on_device, problem);
    }
    const cuda::FoundInputs found(place.batch);
    cuda::AdvantageCall on_device = advantage->on_device(call, place.rows(), found.inputs().groups.size);
    on_device.stream = place.stream;
    on_device.abort = abort;
    return cuda::advantages_host(place.device, found.inputs(), request, on_device, problem);
  };
  work->value = [=](Napi::Env env) {
    advantage->finish(call);
    return Napi::Number::New(env, static_cast<int>(advantage->not_finite.input));
  };
  return perform(object, work);
}

Napi::Value kl_on_cuda(const Napi::Object& object, const Function& function, const Place& place,
                       const KlOutputs& outputs) {
  auto work = std::make_shared<Work>();
  auto mean = std::make_shared<double>(0.0);
  work->device = device_of(place);
  const int estimator = function.kl;
  const unsigned columns = columns_of(function);
  work->run = [=](const int32_t* abort, cuda::Problem* problem) {
    cuda::KlCall call;
    call.estimator = estimator;
    call.columns = columns;
    call.base = outputs.base;
    call.scale = outputs.scale;
    call.out = outputs.out;
    call.mean_kl = outputs.base ? mean.get() : nullptr;
    call.stream = place.stream;
    call.abort = abort;
    return place.resident ? cuda::kl(place.resident.get(), call, problem)
                          : cuda::kl_host(place.device, place.batch, call, problem);
  };
  work->value = [=](Napi::Env env) { return Napi::Number::New(env, *mean); };
  return perform(object, work);
}

Napi::Value logits_on_cuda(const Napi::Object& object, const LogitsCall& call) {
  auto work = std::make_shared<Work>();
  cuda::DeviceLogits logits;
  logits.call = call;
  logits.data_there = object.Get("data").IsBigInt();
  logits.out_there = object.Get("out").IsBigInt();
  logits.data_handle = handle_if_any(object.Get("dataHandle"));
  logits.out_handle = handle_if_any(object.Get("outHandle"));
  logits.stream = stream_if_any(object.Get("stream"));
  const int device = object.Get("device").ToNumber().Int32Value();
  work->device = device;
  keep_arrays(object.Get("arrays"), &work->arrays);
  double* const timing = array_if_any<double>(object, "timing", 1);
  const auto milliseconds = std::make_shared<float>(0.0f);
  work->run = [=](const int32_t* abort, cuda::Problem* problem) {
    cuda::DeviceLogits one = logits;
    one.abort = abort;
    one.kernels_ms = timing ? milliseconds.get() : nullptr;
    return cuda::logits(device, one, problem);
  };
  work->value = [=](Napi::Env env) {
    if (timing) *timing = *milliseconds;
    return Napi::Number::New(env, 0);
  };
  return perform(object, work);
}

Napi::Value head_on_cuda(const Napi::Object& object, const HeadCall& call, int64_t rows) {
  auto work = std::make_shared<Work>();
  cuda::DeviceHead head;
  head.call = call;
  head.stream = stream_if_any(object.Get("stream"));
  work->device = object.Get("device").ToNumber().Int32Value();
  // Returns an array on the device of at least `length` numbers; null if the property is undefined.
  const auto array = [&](const char* name, int64_t length) -> cuda::DeviceArray* {
    const Napi::Value value = object.Get(name);
    if (value.IsUndefined()) return nullptr;
    work->arrays.push_back(read_device_array(value));
    cuda::DeviceArray* const found = work->arrays.back().get();
    const cuda::ArrayInfo known = cuda::array_info(found);
    if (known.device != work->device || known.length < length)
      refuse(object.Env(), std::string(name) + " is on another device or too short");
    return found;
  };
  constexpr int64_t kFloatBytes = sizeof(float);
  const int64_t numbers = call.vocabulary * call.size;
  head.weight = array("weightThere", (numbers * size_of(call.weight_dtype) + kFloatBytes - 1) / kFloatBytes);
  head.logits = array("logits", rows * call.vocabulary);
  head.grad_weight = array("gradWeight", numbers);
  head.grad_bias = array("gradBias", call.vocabulary);
  if (!head.weight || !head.logits) refuse(object.Env(), "an array on the device is missing");
  work->run = [=, device = work->device](const int32_t* abort, cuda::Problem* problem) {
    cuda::DeviceHead one = head;
    one.abort = abort;
    return cuda::head(device, one, problem);
  };
  work->value = [](Napi::Env env) { return Napi::Number::New(env, 0); };
  return perform(object, work);
}

}  // namespace policy_loss::addon

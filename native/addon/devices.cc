#include "addon/devices.h"

#include <utility>

#include "addon/device_work.h"
#include "addon/keep.h"
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

ResidentHandle read_resident(const Napi::Value& batch) {
  const ResidentHandle resident = *batch.As<Napi::External<ResidentHandle>>().Data();
  if (!resident) refuse(batch.Env(), "the batch was released");
  return resident;
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

// A task for the CPU engine's threads. It consists of the pieces of work that the CUDA engine shares out,
// such as copying host memory.
class Pieces : public cpu::Task {
 public:
  Pieces(int64_t count, void (*piece)(void*, int64_t), void* what)
      : count_(count), piece_(piece), what_(what) {}

  void done() override {}

 private:
  int64_t open_phase() override { return std::exchange(count_, 0); }
  void work(int64_t piece) override { piece_(what_, piece); }

  int64_t count_;
  void (*const piece_)(void*, int64_t);
  void* const what_;
};

}  // namespace

void share_devices_work() {
  cuda::share_work_by([](int64_t count, void (*piece)(void*, int64_t), void* what) {
    cpu::Pool::shared().run(std::make_shared<Pieces>(count, piece, what));
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

Place read_place(const Napi::Value& batch, const Napi::Value& device, unsigned columns, bool mask_needed) {
  const Napi::Env env = batch.Env();
  Place place;
  if (batch.IsExternal()) {
    place.resident = read_resident(batch);
    const cuda::ResidentInfo info = cuda::resident_info(place.resident.get());
    check_columns(env, columns, info.present, mask_needed, info.mask);
    return place;
  }
  place.batch = read_batch(batch.As<Napi::Object>());
  if (!device.IsUndefined()) place.device = device.ToNumber().Int32Value();
  if (place.tokens() > 0)
    check_columns(env, columns, present_columns(place.batch), mask_needed, place.batch.mask != nullptr);
  return place;
}

Napi::Value evaluate_on_cuda(const Napi::CallbackInfo& info, const FunctionHandle& function,
                             const Place& place, const Call& call, bool later) {
  auto work = std::make_shared<Work>();
  auto result = std::make_shared<cuda::Result>();
  auto milliseconds = std::make_shared<Milliseconds>();
  auto advantage = std::make_shared<AdvantageWork>();
  if (call.advantage) {
    check_advantage_inputs(info.Env(), *call.advantage,
                           presence_of(cuda::resident_info(place.resident.get())));
    advantage->function = *call.advantage;
  }
  work->device = device_of(place);
  work->caller_abort = call.abort;
  for (const DeviceArrayHandle& array : {call.device_grad, call.device_grad_entropy}) {
    if (!array) continue;
    const cuda::ArrayInfo to = cuda::array_info(array.get());
    if (to.device != device_of(place) || to.length != place.tokens())
      refuse(info.Env(), "a gradient's array is on another device, or has another length");
  }
  const bool with_grad =
      call.outputs.has_grad() || call.grad_stays || call.device_grad || call.device_grad_entropy;
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
    on_device.device_grad = call.device_grad.get();
    on_device.device_grad_entropy = call.device_grad_entropy.get();
    on_device.grad_stays = call.grad_stays;
    on_device.repeats = call.repeats;
    on_device.mask = call.mask;
    on_device.weights = call.weights;
    on_device.logprob = call.logprob;
    on_device.passes_ms = call.timing ? &milliseconds->all : nullptr;
    on_device.token_pass_ms = call.timing ? &milliseconds->token_pass : nullptr;
    on_device.stream = call.stream;
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
  work->value = [=](Napi::Env env) {
    if (call.advantage && !advantage->finish(call.advantage_call))
      return Napi::Number::New(env, -1 - static_cast<int>(advantage->not_finite.input));
    if (call.timing) {
      call.timing[0] = milliseconds->all;
      call.timing[1] = milliseconds->token_pass;
    }
    if (call.outputs.counts) write_counts(result->counts, call.outputs.counts);
    return Napi::Number::New(env, cuda::finish_result(*function, request_of_call(), *result, call.outputs));
  };
  return perform(info, work, later);
}

int64_t AdvantagePlace::rows() const {
  return resident ? cuda::resident_info(resident.get()).rows : batch.tokens.layout.rows;
}

int64_t AdvantagePlace::tokens() const {
  return resident ? cuda::resident_info(resident.get()).tokens : batch.tokens.layout.tokens();
}

AdvantagePlace read_advantage_place(const AdvantageFunction& function, const Napi::Value& batch,
                                    const Napi::Value& device) {
  AdvantagePlace place;
  if (batch.IsExternal()) {
    place.resident = read_resident(batch);
    check_advantage_inputs(batch.Env(), function, presence_of(cuda::resident_info(place.resident.get())));
    return place;
  }
  place.batch = read_advantage_batch(batch.As<Napi::Object>());
  if (!device.IsUndefined()) place.device = device.ToNumber().Int32Value();
  check_advantage_inputs(batch.Env(), function, presence_of(place.batch));
  return place;
}

Napi::Value advantages_on_cuda(const Napi::CallbackInfo& info, const AdvantageFunction& function,
                               const AdvantagePlace& place, const AdvantageCall& call, bool later) {
  auto work = std::make_shared<Work>();
  auto advantage = std::make_shared<AdvantageWork>();
  advantage->function = function;
  work->device = device_of(place);
  work->caller_abort = call.abort;
  work->run = [=](const int32_t* abort, cuda::Problem* problem) {
    const cuda::AdvantageRequest request = cuda::request_of(advantage->function, call.seed);
    if (place.resident) {
      const cuda::ResidentInfo resident = cuda::resident_info(place.resident.get());
      cuda::AdvantageCall on_device = advantage->on_device(call, resident.rows, resident.group_count);
      on_device.stream = call.stream;
      on_device.abort = abort;
      return cuda::advantages(place.resident.get(), request, on_device, problem);
    }
    const cuda::FoundInputs found(place.batch);
    cuda::AdvantageCall on_device = advantage->on_device(call, place.rows(), found.inputs().groups.size);
    on_device.stream = call.stream;
    on_device.abort = abort;
    return cuda::advantages_host(place.device, found.inputs(), request, on_device, problem);
  };
  work->value = [=](Napi::Env env) {
    advantage->finish(call);
    return Napi::Number::New(env, static_cast<int>(advantage->not_finite.input));
  };
  return perform(info, work, later);
}

Napi::Value kl_on_cuda(const Napi::CallbackInfo& info, int estimator, const Place& place, const float* base,
                       double scale, float* out, const cuda::CallerStream& stream, bool later) {
  auto work = std::make_shared<Work>();
  auto mean = std::make_shared<double>(0.0);
  work->device = device_of(place);
  Function function;
  function.kl = estimator;
  const unsigned columns = columns_of(function);
  work->run = [=](const int32_t* abort, cuda::Problem* problem) {
    cuda::KlCall call;
    call.estimator = estimator;
    call.columns = columns;
    call.base = base;
    call.scale = scale;
    call.out = out;
    call.mean_kl = base ? mean.get() : nullptr;
    call.stream = stream;
    call.abort = abort;
    return place.resident ? cuda::kl(place.resident.get(), call, problem)
                          : cuda::kl_host(place.device, place.batch, call, problem);
  };
  work->value = [=](Napi::Env env) { return Napi::Number::New(env, *mean); };
  return perform(info, work, later);
}

namespace {

// Reads the inputs of advantage functions that go with a batch. Without any, the result has only the layout.
AdvantageBatch read_inputs(const Napi::Value& value, const BatchView& batch) {
  AdvantageBatch inputs;
  if (value.IsObject())
    inputs = read_advantage_batch(value.As<Napi::Object>());
  else
    inputs.tokens.layout = batch.layout;
  if (inputs.tokens.layout.rows != batch.layout.rows ||
      inputs.tokens.layout.tokens() != batch.layout.tokens())
    refuse(value.Env(), "the inputs of advantage functions must have the batch's shape");
  return inputs;
}

// Reads the columns of NativeBatch.pointers, each with its code in NativeBatch.dtypes, and
// NativeBatch.handles.
void read_pointers(const Napi::Value& value, ColumnView* columns, cuda::IpcHandle* handles) {
  if (!value.IsObject()) return;
  const Napi::Value given = value.As<Napi::Object>().Get("handles");
  const Napi::Value pointers = value.As<Napi::Object>().Get("pointers");
  if (!pointers.IsArray()) return;
  const Napi::Array dtypes = value.As<Napi::Object>().Get("dtypes").As<Napi::Array>();
  for (uint32_t c = 0; c < std::min<uint32_t>(pointers.As<Napi::Array>().Length(), kColumns); ++c) {
    const Napi::Value pointer = pointers.As<Napi::Array>().Get(c);
    if (!pointer.IsBigInt()) continue;
    const int code = dtypes.Get(c).ToNumber().Int32Value();
    columns[c] = view_of(value.Env(), code);
    columns[c].data = address_in(pointer);
    handles[c] = handle_if_any(given.IsArray() ? given.As<Napi::Array>().Get(c) : value.Env().Undefined());
  }
}

// Reads what upload() and update() take from the device: their arguments 1, 3 and 4.
cuda::DeviceColumns read_device_columns(const Napi::CallbackInfo& info) {
  cuda::DeviceColumns columns;
  read_pointers(info[1], columns.losses, columns.loss_handles);
  read_pointers(info[3], columns.advantages, columns.advantage_handles);
  columns.stream = stream_if_any(info[4]);
  return columns;
}

// Makes a resident batch by calling make(abort, &made, problem) on the thread of the device's uploads, and
// returns a promise of it. Takes the tensors of the DLPack capsules of the batch (argument 1) and of the
// inputs of advantage functions (argument 3), and keeps the arrays of this addon that they read.
template <class Make>
Napi::Value make_resident(const Napi::CallbackInfo& info, int device, const Napi::Value& abort, Make make) {
  auto work = std::make_shared<Work>();
  for (const int argument : {1, 3}) {
    if (!info[argument].IsObject()) continue;
    const Napi::Object batch = info[argument].As<Napi::Object>();
    keep_arrays(batch.Get("arrays"), &work->arrays);
    take_tensors(batch.Get("capsules"), &work->tensors);
  }
  auto resident = std::make_shared<ResidentHandle>();
  work->device = device;
  work->kind = CallKind::kUploading;
  work->caller_abort = flag_if_any(abort);
  work->run = [make, resident, device](const int32_t* flag, cuda::Problem* problem) {
    cuda::Resident* made = nullptr;
    const cuda::Status status = make(flag, &made, problem);
    if (made) *resident = handle_of(made, device);
    return status;
  };
  work->value = [resident](Napi::Env env) { return owned<ResidentHandle>(env, *resident); };
  return perform(info, work, true);
}

}  // namespace

// Implements upload(device, batch, abort?, inputs?, stream?), which binding.d.ts describes.
Napi::Value upload(const Napi::CallbackInfo& info) {
  const ReadForLater reading(info.Env());
  return guarded(info, [&] {
    const int device = info[0].ToNumber().Int32Value();
    const BatchView batch = read_batch(info[1].As<Napi::Object>());
    const AdvantageBatch inputs = read_inputs(info[3], batch);
    const cuda::DeviceColumns there = read_device_columns(info);
    return make_resident(info, device, info[2],
                         [=](const int32_t* abort, cuda::Resident** made, cuda::Problem* problem) {
                           const cuda::FoundInputs found(inputs);
                           return cuda::upload(device, batch, found.inputs(), there, abort, made, problem);
                         });
  });
}

// Implements update(resident, columns, abort?, inputs?, stream?), which binding.d.ts describes.
Napi::Value update(const Napi::CallbackInfo& info) {
  const ReadForLater reading(info.Env());
  return guarded(info, [&] {
    const ResidentHandle resident = read_resident(info[0]);
    const cuda::ResidentInfo known = cuda::resident_info(resident.get());
    const BatchView columns = read_batch(info[1].As<Napi::Object>());
    const BatchView inputs = read_inputs(info[3], columns).tokens;
    const cuda::DeviceColumns there = read_device_columns(info);
    if (columns.layout.rows != known.rows || columns.layout.tokens() != known.tokens)
      refuse(info.Env(), "the columns must have the batch's shape");
    return make_resident(info, known.device, info[2],
                         [=](const int32_t* abort, cuda::Resident** made, cuda::Problem* problem) {
                           return cuda::update(resident.get(), columns, inputs, there, abort, made, problem);
                         });
  });
}

// Implements trim(device), which binding.d.ts describes.
Napi::Value trim(const Napi::CallbackInfo& info) {
  const int device = info[0].ToNumber().Int32Value();
  auto work = std::make_shared<Work>();
  work->device = device;
  work->run = [device](const int32_t*, cuda::Problem* problem) { return cuda::trim(device, problem); };
  work->value = [](Napi::Env env) { return Napi::Number::New(env, 0); };
  return perform(info, work, true);
}

// Implements release(): drops JavaScript's reference to a resident batch. Calls in progress keep the batch
// until they are done.
Napi::Value release(const Napi::CallbackInfo& info) {
  info[0].As<Napi::External<ResidentHandle>>().Data()->reset();
  return info.Env().Undefined();
}

}  // namespace policy_loss::addon

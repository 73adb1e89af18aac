#include "addon/device_memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "addon/calls.h"
#include "addon/device_work.h"
#include "addon/devices.h"
#include "cuda/request.h"

namespace policy_loss::addon {
namespace {

// Returns the CUDA version that the driver must support to run a module that was built with `build_version`.
// Versions are 1000·major + 10·minor. A driver runs machine code of later versions with the same major
// number, but it compiles no PTX of later versions.
int required_version(int build_version) {
#if defined(POLICY_LOSS_PTX_ONLY)
  return build_version;
#else
  return build_version / 1000 * 1000;
#endif
}

}  // namespace

// Implements cudaDevices().
Napi::Value cuda_devices(const Napi::CallbackInfo& info) {
  static constexpr const char* obstacles[] = {nullptr,      "built-without-cuda", "no-driver",
                                              "old-driver", "no-device",          "failed"};
  const Napi::Env env = info.Env();
  cuda::Problem problem;
  cuda::DeviceCount count = cuda::count_devices(&problem);
  const int required = required_version(count.build_version);
  if (count.obstacle == cuda::Obstacle::kNone && count.driver_version < required) {
    count.count = 0;
    count.obstacle = cuda::Obstacle::kOldDriver;
  }
  Napi::Object result = Napi::Object::New(env);
  Napi::Array devices = Napi::Array::New(env);
  for (int device = 0; device < count.count; ++device) {
    cuda::DeviceInfo found;
    if (cuda::device_info(device, &found, &problem) != cuda::Status::kOk) continue;
    Napi::Object entry = Napi::Object::New(env);
    entry.Set("index", device);
    entry.Set("description", found.name);
    entry.Set("memory", static_cast<double>(found.memory));
    entry.Set("capability", found.capability);
    entry.Set("leastCapability", found.least_capability);
    devices.Set(devices.Length(), entry);
  }
  result.Set("devices", devices);
  result.Set("driverVersion", count.driver_version);
  result.Set("requiredVersion", required);
  if (devices.Length() == 0) {
    const cuda::Obstacle obstacle =
        count.obstacle == cuda::Obstacle::kNone ? cuda::Obstacle::kFailed : count.obstacle;
    result.Set("obstacle", obstacles[static_cast<int>(obstacle)]);
    result.Set("message", static_cast<const char*>(problem.message));
  }
  return result;
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

// Reads what a call of upload() or update() takes from the device.
cuda::DeviceColumns read_device_columns(const Napi::Object& call) {
  cuda::DeviceColumns columns;
  columns.losses = read_pointers(call.Get("batch"));
  columns.advantages = read_pointers(call.Get("inputs"));
  columns.stream = stream_if_any(call.Get("stream"));
  return columns;
}

// Makes a resident batch by calling make(abort, &made, problem) on the thread of the device's uploads, and
// returns a promise of it. Keeps the arrays of this addon that the call reads.
template <class Make>
Napi::Value make_resident(const Napi::Object& call, int device, Make make) {
  auto work = std::make_shared<Work>();
  for (const char* name : {"batch", "inputs"})
    if (const Napi::Value batch = call.Get(name); batch.IsObject())
      keep_arrays(batch.As<Napi::Object>().Get("arrays"), &work->arrays);
  auto resident = std::make_shared<ResidentHandle>();
  work->device = device;
  work->kind = CallKind::kUploading;
  work->caller_abort = abort_flag_in(call);
  work->run = [make, resident, device](const int32_t* flag, cuda::Problem* problem) {
    cuda::Resident* made = nullptr;
    const cuda::Status status = make(flag, &made, problem);
    if (made) *resident = handle_of(made, device);
    return status;
  };
  work->value = [resident](Napi::Env env) { return owned<ResidentHandle>(env, *resident); };
  return perform_later(call, work);
}

}  // namespace

// Implements upload(call).
Napi::Value upload(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    const Napi::Object call = info[0].As<Napi::Object>();
    const int device = call.Get("device").ToNumber().Int32Value();
    const BatchView batch = read_batch(call.Get("batch").As<Napi::Object>());
    const AdvantageBatch inputs = read_inputs(call.Get("inputs"), batch);
    const cuda::DeviceColumns there = read_device_columns(call);
    return make_resident(call, device,
                         [=](const int32_t* abort, cuda::Resident** made, cuda::Problem* problem) {
                           const cuda::FoundInputs found(inputs);
                           return cuda::upload(device, batch, found.inputs(), there, abort, made, problem);
                         });
  });
}

// Implements update(call).
Napi::Value update(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    const Napi::Object call = info[0].As<Napi::Object>();
    const ResidentHandle resident = read_resident(call.Get("resident"));
    const cuda::ResidentInfo known = cuda::resident_info(resident.get());
    const BatchView columns = read_batch(call.Get("batch").As<Napi::Object>());
    const BatchView inputs = read_inputs(call.Get("inputs"), columns).tokens;
    const cuda::DeviceColumns there = read_device_columns(call);
    if (columns.layout.rows != known.rows || columns.layout.tokens() != known.tokens)
      refuse(info.Env(), "the columns must have the batch's shape");
    return make_resident(call, known.device,
                         [=](const int32_t* abort, cuda::Resident** made, cuda::Problem* problem) {
                           return cuda::update(resident.get(), columns, inputs, there, abort, made, problem);
                         });
  });
}

// Implements trim(device).
Napi::Value trim(const Napi::CallbackInfo& info) {
  const int device = info[0].ToNumber().Int32Value();
  auto work = std::make_shared<Work>();
  work->device = device;
  work->run = [device](const int32_t*, cuda::Problem* problem) { return cuda::trim(device, problem); };
  work->value = [](Napi::Env env) { return Napi::Number::New(env, 0); };
  return perform_later(info.Env().Undefined(), work);
}

// Implements release(): drops JavaScript's reference to a resident batch. Calls in progress keep the batch
// until they are done.
Napi::Value release(const Napi::CallbackInfo& info) {
  info[0].As<Napi::External<ResidentHandle>>().Data()->reset();
  return info.Env().Undefined();
}

// Implements deviceArray(device, length, shareable).
Napi::Value device_array(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    const int device = info[0].ToNumber().Int32Value();
    const int64_t length = info[1].ToNumber().Int64Value();
    if (length < 0) refuse(info.Env(), "the length is negative");
    cuda::DeviceArray* const array = cuda::make_array(device, length, info[2].ToBoolean());
    if (!array) refuse(info.Env(), "this build has no CUDA");
    return owned<DeviceArrayHandle>(info.Env(), handle_of(array, device));
  });
}

Napi::Value device_array_address(const Napi::CallbackInfo& info) {
  const DeviceArrayHandle array = read_device_array(info[0]);
  return Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(cuda::array_info(array.get()).address));
}

// Implements readDeviceArray(array, out).
Napi::Value read_device_array_to_host(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    const DeviceArrayHandle array = read_device_array(info[0]);
    const cuda::ArrayInfo known = cuda::array_info(array.get());
    float* const out = array_of<float>(info[1], known.length, "out");
    if (known.length > 0 && !known.address) refuse(info.Env(), "no call has written the array");
    auto work = std::make_shared<Work>();
    work->device = known.device;
    work->run = [=](const int32_t*, cuda::Problem* problem) {
      return cuda::read_array(array.get(), out, problem);
    };
    work->value = [](Napi::Env env) { return Napi::Number::New(env, 0); };
    return perform_later(info[1], work);
  });
}

// Implements exportDeviceArray(array).
Napi::Value export_device_array(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    const DeviceArrayHandle array = read_device_array(info[0]);
    const cuda::ArrayInfo known = cuda::array_info(array.get());
    if (!known.address) refuse(info.Env(), "the array has no memory");
    auto work = std::make_shared<Work>();
    auto handle = std::make_shared<cuda::IpcHandle>();
    work->device = known.device;
    work->run = [=](const int32_t*, cuda::Problem* problem) {
      return cuda::export_array(array.get(), handle.get(), problem);
    };
    work->value = [=](Napi::Env env) {
      Napi::Uint8Array bytes = Napi::Uint8Array::New(env, sizeof handle->bytes);
      std::memcpy(bytes.Data(), handle->bytes, sizeof handle->bytes);
      return bytes;
    };
    return perform_later(info.Env().Undefined(), work);
  });
}

// Implements releaseDeviceArray(): drops JavaScript's reference. Calls in progress keep the array until they
// are done.
Napi::Value release_device_array(const Napi::CallbackInfo& info) {
  info[0].As<Napi::External<DeviceArrayHandle>>().Data()->reset();
  return info.Env().Undefined();
}

namespace {

using PinnedHandle = std::shared_ptr<cuda::PinnedRegion>;

// The regions of page-locked memory, by address. Never destroyed, because regions may be freed while the
// process ends.
class PinnedRegions {
 public:
  static PinnedRegions& all() {
    static PinnedRegions* const regions = new PinnedRegions;
    return *regions;
  }

  void add(const void* begin, const PinnedHandle& region) {
    const std::lock_guard lock(mutex_);
    regions_[begin] = region;
  }
  void remove(const void* begin) {
    const std::lock_guard lock(mutex_);
    regions_.erase(begin);
  }
  // Returns null if no region begins there.
  PinnedHandle find(const void* begin) {
    const std::lock_guard lock(mutex_);
    const auto found = regions_.find(begin);
    return found == regions_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<const void*, std::weak_ptr<cuda::PinnedRegion>> regions_;
};

// Returns an ArrayBuffer on a region, which keeps the region until it is collected or detached.
Napi::Value buffer_on(Napi::Env env, const PinnedHandle& region, int64_t bytes) {
  auto handle = std::make_unique<PinnedHandle>(region);
  napi_value buffer = nullptr;
  const napi_status status = napi_create_external_arraybuffer(
      env, cuda::pinned_data(region.get()), static_cast<size_t>(bytes),
      [](auto, void*, void* last) { delete static_cast<PinnedHandle*>(last); }, handle.get(), &buffer);
  if (status == napi_ok) {
    handle.release();
    return Napi::Value(env, buffer);
  }
  throw coded_error(env, "ERR_DEVICE_UNAVAILABLE",
                    "this program does not allow an ArrayBuffer on memory that it did not allocate");
}

}  // namespace

// Implements allocPinned(device, bytes).
Napi::Value alloc_pinned(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    const int device = info[0].ToNumber().Int32Value();
    const int64_t bytes = info[1].ToNumber().Int64Value();
    if (bytes <= 0) refuse(info.Env(), "the number of bytes is not positive");
    auto work = std::make_shared<Work>();
    auto region = std::make_shared<PinnedHandle>();
    work->device = device;
    work->kind = CallKind::kUploading;
    work->run = [=](const int32_t*, cuda::Problem* problem) {
      cuda::PinnedRegion* made = nullptr;
      const cuda::Status status = cuda::make_pinned(device, bytes, &made, problem);
      if (!made) return status;
      // Freeing waits for the devices, so the thread of the device's calls does it.
      const std::shared_ptr<cuda::PinnedRegion> freed = handle_of(made, device);
      const void* const begin = cuda::pinned_data(made);
      *region =
          PinnedHandle(made, [freed, begin](cuda::PinnedRegion*) { PinnedRegions::all().remove(begin); });
      PinnedRegions::all().add(begin, *region);
      return status;
    };
    work->value = [=](Napi::Env env) { return buffer_on(env, *region, bytes); };
    return perform_later(info.Env().Undefined(), work);
  });
}

// Implements freePinned(buffer): detaches the ArrayBuffer, which drops its reference to the region. The calls
// in progress keep the region, because it may be the memory of their arrays.
Napi::Value free_pinned(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Env env = info.Env();
    Napi::ArrayBuffer buffer = info[0].As<Napi::ArrayBuffer>();
    const PinnedHandle region = PinnedRegions::all().find(buffer.Data());
    if (!region) return Napi::Boolean::New(env, false);
    Instance::of(env).keep_for_running_jobs(region);
    buffer.Detach();
    return Napi::Boolean::New(env, true);
  });
}

}  // namespace policy_loss::addon

// Arrays in the memory of a device, to which calls write gradients.
#include <cstring>

#include "addon/device_work.h"
#include "addon/devices.h"
#include "addon/keep.h"

namespace policy_loss::addon {

// Implements deviceArray(device, length, shareable), which binding.d.ts describes.
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

// Implements readDeviceArray(array, out), which binding.d.ts describes.
Napi::Value read_device_array_to_host(const Napi::CallbackInfo& info) {
  const ReadForLater reading(info.Env());
  return guarded(info, [&] {
    const DeviceArrayHandle array = read_device_array(info[0]);
    const cuda::ArrayInfo known = cuda::array_info(array.get());
    float* const out = floats(info[1], known.length, "out");
    if (known.length > 0 && !known.address) refuse(info.Env(), "no call has written the array");
    auto work = std::make_shared<Work>();
    work->device = known.device;
    work->run = [=](const int32_t*, cuda::Problem* problem) {
      return cuda::read_array(array.get(), out, problem);
    };
    work->value = [](Napi::Env env) { return Napi::Number::New(env, 0); };
    return perform(info, work, true);
  });
}

// Implements exportDeviceArray(array), which binding.d.ts describes.
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
    return perform(info, work, true);
  });
}

// Implements releaseDeviceArray(): drops JavaScript's reference. Calls in progress keep the array until they
// are done.
Napi::Value release_device_array(const Napi::CallbackInfo& info) {
  info[0].As<Napi::External<DeviceArrayHandle>>().Data()->reset();
  return info.Env().Undefined();
}

}  // namespace policy_loss::addon

// Lists the machine's CUDA devices, and says why there is none.
#include "addon/devices.h"

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

// Implements cudaDevices(), which binding.d.ts describes.
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

}  // namespace policy_loss::addon

// Lists the CUDA devices, and manages what is in their memory: resident batches, arrays, and page-locked
// memory of the host.
#pragma once

#include <napi.h>

namespace policy_loss::addon {

// These functions implement NativeDevices of binding.d.ts.
Napi::Value cuda_devices(const Napi::CallbackInfo& info);
Napi::Value upload(const Napi::CallbackInfo& info);
Napi::Value update(const Napi::CallbackInfo& info);
Napi::Value trim(const Napi::CallbackInfo& info);
Napi::Value release(const Napi::CallbackInfo& info);
Napi::Value device_array(const Napi::CallbackInfo& info);
Napi::Value device_array_address(const Napi::CallbackInfo& info);
Napi::Value read_device_array_to_host(const Napi::CallbackInfo& info);
Napi::Value export_device_array(const Napi::CallbackInfo& info);
Napi::Value release_device_array(const Napi::CallbackInfo& info);
Napi::Value alloc_pinned(const Napi::CallbackInfo& info);
Napi::Value free_pinned(const Napi::CallbackInfo& info);

}  // namespace policy_loss::addon

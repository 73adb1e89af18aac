// Runs the native module's calls on CUDA devices.
#pragma once

#include <napi.h>

#include <memory>

#include "addon/read.h"
#include "cuda/cuda.h"

namespace policy_loss::addon {

// A shared reference to a resident batch, which is a batch in the memory of a device. The batch is released
// when its last reference is dropped.
using ResidentHandle = std::shared_ptr<const cuda::Resident>;

// A call's batch, and the place where it is computed. A resident batch is computed on the device that holds
// it. A batch in host memory is computed on the CUDA device with index `device`, or on the CPU if `device` is
// negative.
struct Place {
  int device = -1;
  ResidentHandle resident;
  BatchView batch;  // empty if `resident` is set

  bool on_cuda() const { return resident || device >= 0; }
  int64_t rows() const;
  int64_t tokens() const;
  // Returns the set of row columns that the batch has.
  unsigned row_columns() const;
};
// Reads two arguments of a call: its batch, and the index of its device (undefined for the CPU). `columns` is
// the set of columns that the call needs. Throws if the batch lacks one of them, or if it lacks a mask and
// `mask_needed` is set.
Place read_place(const Napi::Value& batch, const Napi::Value& device, unsigned columns, bool mask_needed);

// The batch of an advantage function's call, and the place where it is computed. The members mean the same as
// in Place.
struct AdvantagePlace {
  int device = -1;
  ResidentHandle resident;
  AdvantageBatch batch;  // empty if `resident` is set

  bool on_cuda() const { return resident || device >= 0; }
  int64_t rows() const;
  int64_t tokens() const;
};
AdvantagePlace read_advantage_place(const AdvantageFunction& function, const Napi::Value& batch,
                                    const Napi::Value& device);

// These functions run a call of binding.d.ts on a device. If `later` is set, they return a promise. Otherwise
// they wait for the device and return the result.
Napi::Value evaluate_on_cuda(const Napi::CallbackInfo& info, const FunctionHandle& function,
                             const Place& place, const Call& call, bool later);
Napi::Value advantages_on_cuda(const Napi::CallbackInfo& info, const AdvantageFunction& function,
                               const AdvantagePlace& place, const AdvantageCall& call, bool later);
Napi::Value kl_on_cuda(const Napi::CallbackInfo& info, int estimator, const Place& place, const float* base,
                       double scale, float* out, const cuda::CallerStream& stream, bool later);

// Makes the CUDA engine copy host memory on the threads of the CPU engine.
void share_devices_work();

Napi::Value upload(const Napi::CallbackInfo& info);
Napi::Value update(const Napi::CallbackInfo& info);
Napi::Value trim(const Napi::CallbackInfo& info);
Napi::Value release(const Napi::CallbackInfo& info);
Napi::Value device_array(const Napi::CallbackInfo& info);
Napi::Value device_array_address(const Napi::CallbackInfo& info);
Napi::Value read_device_array_to_host(const Napi::CallbackInfo& info);
Napi::Value export_device_array(const Napi::CallbackInfo& info);
Napi::Value release_device_array(const Napi::CallbackInfo& info);
Napi::Value cuda_devices(const Napi::CallbackInfo& info);

}  // namespace policy_loss::addon

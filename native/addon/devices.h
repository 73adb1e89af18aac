// The calls of the native module on CUDA devices.
#pragma once

#include <napi.h>

#include <memory>

#include "addon/read.h"
#include "cuda/cuda.h"

namespace policy_loss::addon {

// A shared reference to a batch on a device. The last owner releases it.
using ResidentHandle = std::shared_ptr<const cuda::Resident>;

// The batch of a call and the place where it is computed: a resident batch on its own device, a host batch on
// the CPU (device < 0) or on the CUDA device with index `device`.
struct Place {
  int device = -1;
  ResidentHandle resident;
  BatchView batch;  // unless resident

  bool on_cuda() const { return resident || device >= 0; }
  int64_t rows() const;
  int64_t tokens() const;
};
// Reads the batch argument and the device's index, which is undefined for the CPU. Throws if the batch lacks
// one of the columns, or the mask if it is needed.
Place read_place(const Napi::Value& batch, const Napi::Value& device, unsigned columns, bool mask_needed);

// The batch of an advantage function's call and the place where it is computed, as in Place.
struct AdvantagePlace {
  int device = -1;
  ResidentHandle resident;
  AdvantageBatch batch;  // unless resident

  bool on_cuda() const { return resident || device >= 0; }
  int64_t rows() const;
  int64_t tokens() const;
};
AdvantagePlace read_advantage_place(const AdvantageFunction& function, const Napi::Value& batch,
                                    const Napi::Value& device);

// Run a call of binding.d.ts on a device. They return a promise if `later` is set, and block otherwise.
Napi::Value evaluate_on_cuda(const Napi::CallbackInfo& info, const FunctionHandle& function,
                             const Place& place, const Call& call, bool later);
Napi::Value advantages_on_cuda(const Napi::CallbackInfo& info, const AdvantageFunction& function,
                               const AdvantagePlace& place, const AdvantageCall& call, bool later);
Napi::Value kl_on_cuda(const Napi::CallbackInfo& info, int estimator, const Place& place, const float* base,
                       double scale, float* out, bool later);

// Makes devices use the CPU engine's threads to copy host memory.
void share_devices_work();

Napi::Value upload(const Napi::CallbackInfo& info);
Napi::Value release(const Napi::CallbackInfo& info);
Napi::Value cuda_devices(const Napi::CallbackInfo& info);

}  // namespace policy_loss::addon

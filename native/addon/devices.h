// CUDA devices behind the same calls as the CPU's: upload, evaluate and KL values.
#pragma once

#include <napi.h>

#include <memory>

#include "addon/read.h"
#include "cuda/cuda.h"

namespace policy_loss::addon {

// A batch on a device; released by whoever lets go of it last.
using ResidentHandle = std::shared_ptr<const cuda::Resident>;

// Where a call is to be computed: on the CPU (device < 0), from the host's arrays on a device, or where the
// batch lies (resident).
struct Place {
  int device = -1;
  ResidentHandle resident;
  BatchView batch;  // unless resident

  bool on_cuda() const { return resident || device >= 0; }
  int64_t rows() const;
  int64_t tokens() const;
};
// From the batch argument and the index of the device, undefined for the CPU.
// columns: those that the batch must have.
Place read_place(const Napi::Value& batch, const Napi::Value& device, unsigned columns, bool mask_needed);

// The same of a batch for an advantage function, whose inputs are all there.
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

// The calls of binding.d.ts on a device. They block where not `later`, else give a promise.
Napi::Value evaluate_on_cuda(const Napi::CallbackInfo& info, const FunctionHandle& function,
                             const Place& place, const Call& call, bool later);
Napi::Value advantages_on_cuda(const Napi::CallbackInfo& info, const AdvantageFunction& function,
                               const AdvantagePlace& place, const AdvantageCall& call, bool later);
Napi::Value kl_on_cuda(const Napi::CallbackInfo& info, int estimator, const Place& place, const float* base,
                       double scale, float* out, bool later);

// Has devices share out their work on the host among the CPU engine's threads.
void share_devices_work();

Napi::Value upload(const Napi::CallbackInfo& info);
Napi::Value release(const Napi::CallbackInfo& info);
Napi::Value cuda_devices(const Napi::CallbackInfo& info);
Napi::Value copy_bandwidth(const Napi::CallbackInfo& info);

}  // namespace policy_loss::addon

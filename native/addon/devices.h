// Computes calls on CUDA devices.
#pragma once

#include <napi.h>

#include <memory>

#include "addon/read.h"
#include "cuda/cuda.h"

namespace policy_loss::addon {

// A shared reference to a resident batch, which is a batch in the memory of a device. The batch is released
// when its last reference is dropped.
using ResidentHandle = std::shared_ptr<const cuda::Resident>;

// Returns the handle in a JavaScript value that upload() or update() made. Throws if the batch was released.
ResidentHandle read_resident(const Napi::Value& batch);

// A call's batch, and the place where it is computed. A resident batch is computed on the device that holds
// it. A batch in host memory is computed on the CUDA device with index `device`, or on the CPU if `device` is
// negative.
struct Place {
  int device = -1;
  ResidentHandle resident;
  cuda::CallerStream stream;
  BatchView batch;  // empty if `resident` is set
  // The columns of `batch` that are in memory of the device. Only calls of evaluate() take them.
  cuda::ColumnsThere there;

  bool on_cuda() const { return resident || device >= 0; }
  int64_t rows() const;
  int64_t tokens() const;
  // Returns the set of row columns that the batch has.
  unsigned row_columns() const;
};
// Reads the batch of a call and its place.
Place read_place(const Napi::Object& call);
// Throws if a batch lacks one of the set of columns that a call needs, or if it lacks a mask and
// `mask_needed` is set.
void check_place(Napi::Env env, const Place& place, unsigned columns, bool mask_needed);

// The batch of an advantage function's call, and the place where it is computed. The members mean the same as
// in Place.
struct AdvantagePlace {
  int device = -1;
  ResidentHandle resident;
  cuda::CallerStream stream;
  AdvantageBatch batch;  // empty if `resident` is set

  bool on_cuda() const { return resident || device >= 0; }
  int64_t rows() const;
  int64_t tokens() const;
};
// Throws if the batch lacks an input that the function needs.
AdvantagePlace read_advantage_place(const AdvantageFunction& function, const Napi::Object& call);

// The arrays and the factor of a call of kl(). The pointers mean the same as in cpu::KlEvaluation.
struct KlOutputs {
  float* out;
  const float* base;
  double scale;
};

// These functions run a call of binding.d.ts on a device. `object` is its descriptor.
Napi::Value evaluate_on_cuda(const Napi::Object& object, const FunctionHandle& function, const Place& place,
                             const Call& call);
Napi::Value advantages_on_cuda(const Napi::Object& object, const AdvantageFunction& function,
                               const AdvantagePlace& place, const AdvantageCall& call);
Napi::Value kl_on_cuda(const Napi::Object& object, const Function& function, const Place& place,
                       const KlOutputs& outputs);
Napi::Value logits_on_cuda(const Napi::Object& object, const LogitsCall& call);
// `rows` is the number of rows of logits.
Napi::Value head_on_cuda(const Napi::Object& object, const HeadCall& call, int64_t rows);

// Makes the CUDA engine copy host memory on the threads of the CPU engine.
void share_devices_work();

}  // namespace policy_loss::addon

// Arrays that calls leave in the memory of a device.
#pragma once

#include "cuda/context.h"

namespace policy_loss::cuda {

struct DeviceArray {
  int device;
  int64_t length;
  bool shareable;  // whether other processes can open the memory
  Buffer memory;
  bool written = false;  // whether a call that writes the array has succeeded
};

// The array of a call that receives a gradient: one that stays on the device, or one that is copied to the
// host and lives as long as the call.
class GradientArray {
 public:
  GradientArray() = default;
  GradientArray(const GradientArray&) = delete;
  // An array that no call has written belongs to a call that failed, so its memory is freed.
  ~GradientArray() {
    if (kept_ && !kept_->written) kept_->memory = Buffer();
  }

  // Allocates memory for `length` values. `kept` is the array that stays on the device, or null.
  void allocate(Context& context, int64_t length, DeviceArray* kept) {
    const int64_t bytes = length * static_cast<int64_t>(sizeof(float));
    kept_ = kept;
    if (!kept)
      own_ = context.allocate(bytes);
    else if (kept->memory.bytes() < bytes)
      kept->memory = kept->shareable ? context.allocate_shareable(bytes) : context.allocate(bytes);
  }

  float* data() const { return kept_ ? kept_->memory.as<float>() : own_.as<float>(); }
  // Must be called when the values are complete.
  void finish() {
    if (kept_) kept_->written = true;
  }

 private:
  Buffer own_;
  DeviceArray* kept_ = nullptr;
};

}  // namespace policy_loss::cuda

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
// host and lives as long as the call. Kernels write it in float32; launch_narrowing() converts it.
class GradientArray {
 public:
  GradientArray() = default;
  GradientArray(const GradientArray&) = delete;
  // An array that no call has written belongs to a call that failed, so its memory is freed.
  ~GradientArray() {
    if (staying_ && !staying_->written) staying_->memory = Buffer();
  }

  // Allocates memory for `length` values, which will be copied to `host` in its dtype. `staying` is the array
  // that stays on the device, or null.
  void allocate(Context& context, int64_t length, const GradientView& host, DeviceArray* staying) {
    const int64_t bytes = length * static_cast<int64_t>(sizeof(float));
    staying_ = staying;
    length_ = length;
    host_ = host;
    if (host.dtype != DType::kFloat32) narrow_ = context.allocate(length * size_of(host.dtype));
    if (!staying)
      own_ = context.allocate(bytes);
    else if (staying->memory.bytes() < bytes)
      staying->memory = staying->shareable ? context.allocate_shareable(bytes) : context.allocate(bytes);
  }

  // Launches the kernel that converts the values to the dtype of the host's array, if this is not float32.
  void launch_narrowing(const Context& context) const {
    if (length_ > 0 && host_.dtype != DType::kFloat32)
      launch_narrow(data(), length_, host_.dtype, narrow_.as<uint16_t>(), context.grid_of_threads(length_));
  }

  // Returns the bytes to copy to the host when the values are complete.
  Transfer transfer() const {
    const bool is_narrow = host_.dtype != DType::kFloat32;
    void* const from = is_narrow ? narrow_.as<void>() : data();
    return Channel::transfer_to(from, host_.data, length_ * size_of(host_.dtype));
  }

  // Copies the values to the caller's array, if this is in memory of the device.
  void copy_there(const Context& context) const {
    const Transfer copy = transfer();
    if (copy.bytes > 0)
      CUDA_CHECK(cudaMemcpyAsync(copy.host, copy.device, static_cast<size_t>(copy.bytes),
                                 cudaMemcpyDeviceToDevice, context.compute()));
  }

  float* data() const { return staying_ ? staying_->memory.as<float>() : own_.as<float>(); }
  // Must be called when the values are complete.
  void finish() {
    if (staying_) staying_->written = true;
  }

 private:
  Buffer own_, narrow_;
  int64_t length_ = 0;
  GradientView host_;
  DeviceArray* staying_ = nullptr;
};

}  // namespace policy_loss::cuda

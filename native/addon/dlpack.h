// DLPack tensors, the usual way to pass an array in device memory from one library to another. The structs
// and their layout are those of DLPack's version 0 and 1 (dmlc/dlpack).
//
// Node-API has no named capsules as Python has. A capsule here is an external whose data is a Capsule, with
// the type tag kCapsuleTag. It may come from another addon.
#pragma once

#include <napi.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace policy_loss::addon {

enum DLDeviceType : int32_t { kDLCUDA = 2, kDLCUDAManaged = 13 };
struct DLDevice {
  DLDeviceType device_type;
  int32_t device_id;
};

enum DLDataTypeCode : uint8_t { kDLFloat = 2, kDLBfloat = 4 };
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null if the values lie one after another, row after row
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

// The consumer of a capsule takes the tensor, sets `tensor` to null, and calls the tensor's deleter when it
// no longer reads the memory. If no consumer took the tensor, the external's finalizer calls the deleter.
struct Capsule {
  DLManagedTensor* tensor;
};
// The first eight bytes are the text "dltensor", the name of such capsules in Python.
constexpr napi_type_tag kCapsuleTag = {0x726f736e65746c64, 1};

// A tensor that was taken from a capsule. Its deleter is called with its last reference.
using TensorHandle = std::shared_ptr<DLManagedTensor>;
// Takes the tensor of each capsule in a JavaScript array. Other elements are undefined. Throws if another
// consumer took a tensor first.
void take_tensors(const Napi::Value& capsules, std::vector<TensorHandle>* tensors);

Napi::Value dlpack_tensor(const Napi::CallbackInfo& info);
Napi::Value device_array_to_dlpack(const Napi::CallbackInfo& info);

}  // namespace policy_loss::addon

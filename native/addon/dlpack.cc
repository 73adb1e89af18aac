#include "addon/dlpack.h"

#include "addon/read.h"
#include "cuda/cuda.h"

namespace policy_loss::addon {
namespace {

// Returns the capsule in a JavaScript value, or null if the value is not a capsule.
Capsule* capsule_in(const Napi::Value& value) {
  bool is_capsule = false;
  if (!value.IsExternal() ||
      napi_check_object_type_tag(value.Env(), value, &kCapsuleTag, &is_capsule) != napi_ok || !is_capsule)
    return nullptr;
  return value.As<Napi::External<Capsule>>().Data();
}

// Returns whether the values lie one after another, row after row.
bool is_contiguous(const DLTensor& tensor) {
  int64_t stride = 1;
  for (int32_t i = tensor.ndim - 1; i >= 0 && tensor.strides; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != stride) return false;
    stride *= tensor.shape[i];
  }
  return true;
}

const char* name_of(const DLDataType& dtype) {
  if (dtype.lanes != 1) return "vectors";
  if (dtype.code == kDLFloat && dtype.bits == 32) return "float32";
  if (dtype.code == kDLFloat && dtype.bits == 16) return "float16";
  return dtype.code == kDLBfloat && dtype.bits == 16 ? "bfloat16" : "other";
}

// A tensor on an array of this addon, which keeps the array.
struct Exported {
  DLManagedTensor managed;
  DeviceArrayHandle array;
  std::vector<int64_t> shape;
};

void finalize(Napi::Env, Capsule* capsule) {
  if (capsule->tensor && capsule->tensor->deleter) capsule->tensor->deleter(capsule->tensor);
  delete capsule;
}

}  // namespace

void take_tensors(const Napi::Value& capsules, std::vector<TensorHandle>* tensors) {
  if (!capsules.IsArray()) return;
  const Napi::Array list = capsules.As<Napi::Array>();
  for (uint32_t i = 0; i < list.Length(); ++i) {
    const Napi::Value value = list.Get(i);
    if (value.IsUndefined()) continue;
    Capsule* const capsule = capsule_in(value);
    if (!capsule || !capsule->tensor) refuse(value.Env(), "the tensor of a DLPack capsule was taken");
    tensors->emplace_back(std::exchange(capsule->tensor, nullptr), [](DLManagedTensor* last) {
      if (last->deleter) last->deleter(last);
    });
  }
}

// Implements dlpackTensor(value), which binding.d.ts describes.
Napi::Value dlpack_tensor(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const Capsule* const capsule = capsule_in(info[0]);
  if (!capsule) return env.Undefined();
  Napi::Object found = Napi::Object::New(env);
  found.Set("taken", !capsule->tensor);
  if (!capsule->tensor) return found;
  const DLTensor& tensor = capsule->tensor->dl_tensor;
  Napi::Array shape = Napi::Array::New(env);
  for (int32_t i = 0; i < tensor.ndim; ++i) shape.Set(i, static_cast<double>(tensor.shape[i]));
  const DLDeviceType type = tensor.device.device_type;
  found.Set("pointer", Napi::BigInt::New(env, reinterpret_cast<uint64_t>(tensor.data) + tensor.byte_offset));
  found.Set("dtype", name_of(tensor.dtype));
  found.Set("device", type == kDLCUDA || type == kDLCUDAManaged ? tensor.device.device_id : -1);
  found.Set("shape", shape);
  found.Set("contiguous", is_contiguous(tensor));
  return found;
}

// Implements deviceArrayToDlpack(array, shape), which binding.d.ts describes.
Napi::Value device_array_to_dlpack(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Env env = info.Env();
    auto exported = std::make_unique<Exported>();
    exported->array = read_device_array(info[0]);
    const cuda::ArrayInfo known = cuda::array_info(exported->array.get());
    int64_t length = 1;
    const Napi::Array shape = info[1].As<Napi::Array>();
    for (uint32_t i = 0; i < shape.Length(); ++i) {
      exported->shape.push_back(shape.Get(i).ToNumber().Int64Value());
      length *= exported->shape.back();
    }
    if (length != known.length) refuse(env, "the array has another shape");
    if (length > 0 && !known.address) refuse(env, "no call has written the array");
    exported->managed.dl_tensor = {const_cast<void*>(known.address),
                                   {kDLCUDA, known.device},
                                   static_cast<int32_t>(exported->shape.size()),
                                   {kDLFloat, 32, 1},
                                   exported->shape.data(),
                                   nullptr,
                                   0};
    exported->managed.manager_ctx = exported.get();
    exported->managed.deleter = [](DLManagedTensor* self) {
      delete static_cast<Exported*>(self->manager_ctx);
    };
    auto capsule = std::make_unique<Capsule>(Capsule{&exported->managed});
    const auto made = Napi::External<Capsule>::New(env, capsule.get(), finalize);
    capsule.release();
    exported.release();
    if (napi_type_tag_object(env, made, &kCapsuleTag) != napi_ok)
      refuse(env, "this version of Node cannot make a DLPack capsule");
    return made;
  });
}

}  // namespace policy_loss::addon

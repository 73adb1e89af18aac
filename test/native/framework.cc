// An addon that plays a framework in the process of the tests. It makes DLPack capsules and consumes them,
// and it has memory and streams of its own on the emulated devices. Addresses and streams are bigints.
#include <cuda_runtime.h>
#include <napi.h>

#include <memory>
#include <vector>

#include "addon/dlpack.h"

namespace {

using policy_loss::addon::Capsule;
using policy_loss::addon::DLManagedTensor;
using policy_loss::addon::kCapsuleTag;

int deleted = 0;

struct Tensor {
  DLManagedTensor managed;
  std::vector<int64_t> shape, strides;
};

std::vector<int64_t> numbers(const Napi::Value& value) {
  std::vector<int64_t> result;
  if (!value.IsArray()) return result;
  const Napi::Array list = value.As<Napi::Array>();
  for (uint32_t i = 0; i < list.Length(); ++i) result.push_back(list.Get(i).ToNumber().Int64Value());
  return result;
}

uint64_t word(const Napi::Value& value) {
  bool lossless = false;
  return value.As<Napi::BigInt>().Uint64Value(&lossless);
}

void* address(const Napi::Value& value) {
  return reinterpret_cast<void*>(word(value));
}

cudaStream_t stream_of(const Napi::Value& value) {
  return reinterpret_cast<cudaStream_t>(word(value));
}

Napi::Value check(const Napi::CallbackInfo& info, cudaError_t error) {
  if (error != cudaSuccess) throw Napi::Error::New(info.Env(), cudaGetErrorString(error));
  return info.Env().Undefined();
}

// Makes a capsule from { pointer, shape, strides?, code, bits, lanes, type, device, offset }. If `tag` is
// false, the external lacks the type tag.
Napi::Value make_tensor(const Napi::CallbackInfo& info) {
  const Napi::Object spec = info[0].As<Napi::Object>();
  const auto number = [&](const char* name) { return spec.Get(name).ToNumber().Int64Value(); };
  auto* const tensor = new Tensor;
  tensor->shape = numbers(spec.Get("shape"));
  tensor->strides = numbers(spec.Get("strides"));
  auto& managed = tensor->managed;
  managed.dl_tensor.data = address(spec.Get("pointer"));
  managed.dl_tensor.device.device_type = static_cast<policy_loss::addon::DLDeviceType>(number("type"));
  managed.dl_tensor.device.device_id = static_cast<int32_t>(number("device"));
  managed.dl_tensor.ndim = static_cast<int32_t>(tensor->shape.size());
  managed.dl_tensor.dtype = {static_cast<uint8_t>(number("code")), static_cast<uint8_t>(number("bits")),
                             static_cast<uint16_t>(number("lanes"))};
  managed.dl_tensor.shape = tensor->shape.data();
  managed.dl_tensor.strides = tensor->strides.empty() ? nullptr : tensor->strides.data();
  managed.dl_tensor.byte_offset = static_cast<uint64_t>(number("offset"));
  managed.manager_ctx = tensor;
  managed.deleter = [](DLManagedTensor* self) {
    ++deleted;
    delete static_cast<Tensor*>(self->manager_ctx);
  };
  const auto made =
      Napi::External<Capsule>::New(info.Env(), new Capsule{&managed}, [](Napi::Env, Capsule* last) {
        if (last->tensor) last->tensor->deleter(last->tensor);
        delete last;
      });
  if (spec.Get("tag").ToBoolean()) napi_type_tag_object(info.Env(), made, &kCapsuleTag);
  return made;
}

// Takes the tensor of a capsule. Returns what it says, and a function that calls its deleter.
Napi::Value take_tensor(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  bool is_capsule = false;
  napi_check_object_type_tag(env, info[0], &kCapsuleTag, &is_capsule);
  Capsule* const capsule = info[0].As<Napi::External<Capsule>>().Data();
  if (!is_capsule || !capsule->tensor) throw Napi::Error::New(env, "not a capsule with a tensor");
  DLManagedTensor* const taken = capsule->tensor;
  capsule->tensor = nullptr;
  const auto& tensor = taken->dl_tensor;
  Napi::Array shape = Napi::Array::New(env);
  for (int32_t i = 0; i < tensor.ndim; ++i) shape.Set(i, static_cast<double>(tensor.shape[i]));
  Napi::Object found = Napi::Object::New(env);
  found.Set("pointer", Napi::BigInt::New(env, reinterpret_cast<uint64_t>(tensor.data)));
  found.Set("shape", shape);
  found.Set("type", static_cast<int>(tensor.device.device_type));
  found.Set("device", tensor.device.device_id);
  found.Set("code", tensor.dtype.code);
  found.Set("bits", tensor.dtype.bits);
  found.Set("release",
            Napi::Function::New(env, [taken](const Napi::CallbackInfo&) { taken->deleter(taken); }));
  return found;
}

Napi::Value count_deleted(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), deleted);
}

// allocate(device, bytes) returns an address.
Napi::Value allocate(const Napi::CallbackInfo& info) {
  void* memory = nullptr;
  cudaSetDevice(info[0].ToNumber().Int32Value());
  check(info, cudaMalloc(&memory, static_cast<size_t>(info[1].ToNumber().Int64Value())));
  return Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(memory));
}

Napi::Value free_memory(const Napi::CallbackInfo& info) {
  return check(info, cudaFree(address(info[0])));
}

// exportMemory(pointer) returns a handle, with which another process can open the memory.
Napi::Value export_memory(const Napi::CallbackInfo& info) {
  cudaIpcMemHandle_t handle;
  check(info, cudaIpcGetMemHandle(&handle, address(info[0])));
  return Napi::Buffer<char>::Copy(info.Env(), handle.reserved, sizeof handle.reserved);
}

Napi::Value make_stream(const Napi::CallbackInfo& info) {
  cudaStream_t stream = nullptr;
  cudaSetDevice(info[0].ToNumber().Int32Value());
  check(info, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(stream));
}

Napi::Value destroy_stream(const Napi::CallbackInfo& info) {
  return check(info, cudaStreamDestroy(stream_of(info[0])));
}

// copy(stream, to, from, bytes) queues a copy within the memory of a device.
Napi::Value copy(const Napi::CallbackInfo& info) {
  return check(info, cudaMemcpyAsync(address(info[1]), address(info[2]),
                                     static_cast<size_t>(info[3].ToNumber().Int64Value()),
                                     cudaMemcpyDeviceToDevice, stream_of(info[0])));
}

// clear(stream, to, bytes) queues the writing of zeros.
Napi::Value clear(const Napi::CallbackInfo& info) {
  return check(info,
               cudaMemsetAsync(address(info[1]), 0, static_cast<size_t>(info[2].ToNumber().Int64Value()),
                               stream_of(info[0])));
}

// readLater(stream, from, out) queues a copy to a Float32Array in page-locked memory.
Napi::Value read_later(const Napi::CallbackInfo& info) {
  const Napi::Float32Array out = info[2].As<Napi::Float32Array>();
  return check(info, cudaMemcpyAsync(const_cast<float*>(out.Data()), address(info[1]), out.ByteLength(),
                                     cudaMemcpyDeviceToHost, stream_of(info[0])));
}

// read(stream, from, out) copies to a Float32Array, after the work on the stream.
Napi::Value read(const Napi::CallbackInfo& info) {
  read_later(info);
  return check(info, cudaStreamSynchronize(stream_of(info[0])));
}

// write(stream, to, values) copies a Float32Array to a device.
Napi::Value write(const Napi::CallbackInfo& info) {
  const Napi::Float32Array values = info[2].As<Napi::Float32Array>();
  check(info, cudaMemcpyAsync(address(info[1]), values.Data(), values.ByteLength(), cudaMemcpyHostToDevice,
                              stream_of(info[0])));
  return check(info, cudaStreamSynchronize(stream_of(info[0])));
}

Napi::Object init(Napi::Env env, Napi::Object exports) {
  const auto add = [&](const char* name, auto function) {
    exports.Set(name, Napi::Function::New(env, function, name));
  };
  add("makeTensor", make_tensor);
  add("takeTensor", take_tensor);
  add("deleted", count_deleted);
  add("allocate", allocate);
  add("free", free_memory);
  add("exportMemory", export_memory);
  add("makeStream", make_stream);
  add("destroyStream", destroy_stream);
  add("copy", copy);
  add("clear", clear);
  add("read", read);
  add("readLater", read_later);
  add("write", write);
  return exports;
}

NODE_API_MODULE(framework, init)

}  // namespace

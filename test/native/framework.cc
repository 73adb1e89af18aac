// An addon that plays a framework in the process of the tests. It has memory and streams of its own on the
// emulated devices. Addresses and streams are bigints.
#include <cuda_runtime.h>
#include <napi.h>

namespace {

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

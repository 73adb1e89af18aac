// What the tests of broken kernels and of broken host code share: a device with two streams and a column.
#pragma once

#include <string>

#include "cuda/kernels.h"
#include "faults.h"

namespace policy_loss::cuda {
namespace {

constexpr int kColumnLength = 100;

// The argument of every kernel in this file. All take the same one, so that they differ only in their
// mistakes.
struct Column {
  float* data;
};

struct Machine {
  cudaStream_t stream = nullptr, other = nullptr;
  cudaMemPool_t pool = nullptr;
  Column column{};

  Machine() {
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaMemPoolProps properties{};
    cudaMemPoolCreate(&pool, &properties);
    cudaMallocFromPoolAsync(reinterpret_cast<void**>(&column.data), kColumnLength * sizeof(float), pool,
                            stream);
  }
  ~Machine() {
    cudaFreeAsync(column.data, stream);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
    cudaMemPoolDestroy(pool);
  }
  std::string finish() {
    const cudaError_t found = cudaStreamSynchronize(stream);
    const std::string message = found == cudaSuccess ? "" : cudaGetErrorString(found);
    emulation::restart();
    return message;
  }
};

template <void (*kernel)(Column)>
std::string run() {
  Machine machine;
  launch("kernel", kernel, {2, machine.stream}, machine.column);
  return machine.finish();
}

}  // namespace
}  // namespace policy_loss::cuda

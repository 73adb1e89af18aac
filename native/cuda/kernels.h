// The launches of all kernels, for losses known by their index. The kernels are spread over several files, so
// that they compile side by side.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/pass.h"
#include "engine/construct.h"

namespace policy_loss::cuda {

// Where and how widely a kernel runs, and with how much shared memory beside its own, in bytes.
struct Grid {
  unsigned blocks;
  cudaStream_t stream;
  int memory = 0;
};

// A block's shared memory that needs no permission.
constexpr int kPlainSharedBytes = 48 * 1024;
// At most what a kernel that is fed has of its own.
constexpr int kOwnSharedBytes = (kTokenSums * kThreads + kTokenSums * kWarps) * 8 + 256;

// The one way by which kernels are launched. An error shows in cudaGetLastError().
template <class... Parameters>
void launch(void (*kernel)(Parameters...), const Grid& grid, std::type_identity_t<Parameters>... parameters) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
  if (grid.memory + kOwnSharedBytes > kPlainSharedBytes)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.memory);
  cudaLaunchKernel(kernel, dim3(grid.blocks), dim3(kThreads), pointers, static_cast<size_t>(grid.memory),
                   grid.stream);
}

// Bytes of shared memory that the token pass has its columns in.
int token_memory(int loss, unsigned columns);
int kl_memory(unsigned columns);
// Whether the weights pass of a loss must be one block.
bool is_over_pairs(int loss);
// Whether a loss reads advantages of masked tokens, which then have to be the 0 that they are.
bool looks_under_mask(int loss);
int64_t row_state_bytes();
void launch_rows(int loss, const void* object, const Pass& pass, int64_t first_span, int64_t last_span,
                 const Grid& grid);
void launch_weights(int loss, const void* object, const Pass& pass, const Grid& grid);
void launch_kl(const Pass& pass, const KlOutput& output, const Grid& grid);
void launch_row_means(const Pass& pass, const Grid& grid);
void launch_tokens(int loss, const void* object, const Pass& pass, const Grid& grid);

// The token kernels come in groups: of each one file.
constexpr int kTokenGroups = 4;
template <int group>
void launch_tokens_of_group(int loss, const void* object, const Pass& pass, const Grid& grid);

}  // namespace policy_loss::cuda

// Launches the kernels of the row pass, the weights pass, the token pass and the KL pass. `loss` is the
// loss's index in Losses, or kNone. The kernels are spread over several files, so that the files compile in
// parallel.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/pass.h"
#include "engine/construct.h"

namespace policy_loss::cuda {

// The number of blocks of a launch, its stream, and its dynamic shared memory in bytes.
struct Grid {
  unsigned blocks;
  cudaStream_t stream;
  int memory = 0;
};

// The shared memory that a block may use unless cudaFuncSetAttribute() allows more.
constexpr int kPlainSharedBytes = 48 * 1024;
// The most static shared memory that a fed kernel (feed.cuh) declares, in addition to dynamic shared memory.
// test/native/check-spills.sh checks it.
constexpr int kOwnSharedBytes = (kTokenSums * kThreads + kTokenSums * kWarps) * 8 + 256;

// Launches a kernel. If that fails, cudaGetLastError() returns the error.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), const Grid& grid, std::type_identity_t<Parameters>... parameters) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
  if (grid.memory + kOwnSharedBytes > kPlainSharedBytes)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.memory);
  cudaLaunchKernel(kernel, dim3(grid.blocks), dim3(kThreads), pointers, static_cast<size_t>(grid.memory),
                   grid.stream);
}

// Return the dynamic shared memory of the token kernel and of the KL kernel, in bytes per block.
int token_memory(int loss, unsigned columns);
int kl_memory(unsigned columns);
// Returns whether a loss is over pairs of rows. Its weights pass must be launched with one block.
bool is_over_pairs(int loss);
// Returns whether a loss reads the advantages of masked tokens. These must then be stored, as zeros.
bool looks_under_mask(int loss);
// Returns the size of the largest RowState.
int64_t row_state_bytes();
// Launch a pass. `object` is the loss object; its type is entry `loss` of Losses.
void launch_rows(int loss, const void* object, const Pass& pass, int64_t first_span, int64_t last_span,
                 const Grid& grid);
void launch_weights(int loss, const void* object, const Pass& pass, const Grid& grid);
void launch_kl(const Pass& pass, const KlOutput& output, const Grid& grid);
void launch_row_means(const Pass& pass, const Grid& grid);
void launch_tokens(int loss, const void* object, const Pass& pass, const Grid& grid);

// The token kernels are divided into groups. Each group is compiled in a file of its own, tokens_<group>.cu.
constexpr int kTokenGroups = 4;
template <int group>
void launch_tokens_of_group(int loss, const void* object, const Pass& pass, const Grid& grid);

}  // namespace policy_loss::cuda

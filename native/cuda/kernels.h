// Functions that launch the kernels of the row pass, the weights pass, the token pass and the KL pass. Their
// parameter `loss` is the index of the loss in Losses (engine/registry.h), or kNone. The kernels are spread
// over several files, so that these can be compiled in parallel.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/failure.h"
#include "cuda/pass.h"
#include "engine/construct.h"

namespace policy_loss::cuda {

// The number of blocks of a launch, its stream, and its dynamic shared memory in bytes.
struct Grid {
  unsigned blocks;
  cudaStream_t stream;
  int memory = 0;
};

// The number of bytes of shared memory that a block may use unless cudaFuncSetAttribute() allows more.
constexpr int kPlainSharedBytes = 48 * 1024;
// The most static shared memory, in bytes, that a kernel with a feed (feed.cuh) may declare in addition to
// its dynamic shared memory. test/native/check-spills.sh enforces this limit.
constexpr int kOwnSharedBytes = (kTokenSums * kThreads + kTokenSums * kWarps) * 8 + 256;

// The most static shared memory, in bytes, that any kernel declares.
constexpr int kMostStaticBytes = 9 * 1024;

// Launches a kernel. If the launch fails, throws a Failure that contains `name`, so that no later kernel
// reads what this one would have written.
template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid,
            std::type_identity_t<Parameters>... parameters) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
  if (grid.memory + kMostStaticBytes > kPlainSharedBytes)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.memory), name);
#if defined(__CUDACC__)
  const void* entry = reinterpret_cast<const void*>(kernel);  // CUDA 12 does not take pointers to functions
#else
  const auto entry = kernel;  // the emulation needs the types of the parameters
#endif
  check(cudaLaunchKernel(entry, dim3(grid.blocks), dim3(kThreads), pointers, static_cast<size_t>(grid.memory),
                         grid.stream),
        name);
  launched_kernels.add(name);
}

// Return how much dynamic shared memory a block of the token kernel and of the KL kernel needs.
FeedMemory token_memory(int loss, unsigned columns);
FeedMemory kl_memory(unsigned columns);
// Returns whether a loss is over pairs of rows. The weights pass of such a loss must be launched with one
// block.
bool is_over_pairs(int loss);
// Returns whether the row pass of a loss sums over rows. Otherwise all that it computes follows from the mask
// and the layout.
bool sums_over_rows(int loss, const void* object);
// Returns whether a loss also reads the advantages of masked tokens. The advantages must then be stored per
// token, with zeros for masked tokens.
bool looks_under_mask(int loss);
// Returns the size in bytes of the largest RowState (pass.h). The size depends on the loss.
int64_t row_state_bytes();
// Launch the kernel of one pass. `object` is the loss object; its type is the one at index `loss` in Losses.
void launch_rows(int loss, const void* object, const Pass& pass, int64_t first_chunk, int64_t last_chunk,
                 const Grid& grid);
void launch_weights(int loss, const void* object, const Pass& pass, const Grid& grid);
void launch_kl(const Pass& pass, const KlOutput& output, const Grid& grid);
void launch_row_means(const Pass& pass, const Grid& grid);
// Converts n numbers of float32 to `dtype`, which has 16 bits.
void launch_narrow(const float* from, int64_t n, DType dtype, uint16_t* to, const Grid& grid);
void launch_tokens(int loss, const void* object, const Pass& pass, const Grid& grid);

// The token kernels are divided among files, tokens_<file>.cu, so that they compile side by side.
// launch_tokens_of_file() launches nothing if the loss's kernel is in another file.
constexpr int kTokenFiles = 4;
template <int file>
void launch_tokens_of_file(int loss, const void* object, const Pass& pass, const Grid& grid);

}  // namespace policy_loss::cuda

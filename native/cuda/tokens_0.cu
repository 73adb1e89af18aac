// Group 0 of the token kernels, and how many blocks of one run at once.
#include "cuda/failure.h"
#include "cuda/tokens.cuh"

namespace policy_loss::cuda {

template void launch_tokens_of_group<0>(int, const void*, const Pass&, const Grid&);

// All token kernels take the same shared memory, which decides it; other kernels that are fed take less.
int fed_blocks_per_multiprocessor() {
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, token_kernel<NoLoss>, kThreads, 0));
  return min(max(blocks, 1), kFedBlocksPerMultiprocessor);
}

}  // namespace policy_loss::cuda

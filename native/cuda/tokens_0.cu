// Group 0 of the token kernels.
#include "cuda/tokens.cuh"

namespace policy_loss::cuda {
template void launch_tokens_of_group<0>(int, const void*, const Pass&, const Grid&);
}  // namespace policy_loss::cuda

// The token kernels of group 0: see kernels.h.
#include "cuda/tokens.cuh"

namespace policy_loss::cuda {
template void launch_tokens_of_group<0>(int, const void*, const Pass&, const Grid&);
}  // namespace policy_loss::cuda

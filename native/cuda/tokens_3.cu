// Compiles the token kernels of group 3; kernels.h explains the groups.
#include "cuda/tokens.cuh"

namespace policy_loss::cuda {
template void launch_tokens_of_group<3>(int, const void*, const Pass&, const Grid&);
}  // namespace policy_loss::cuda

// Compiles the token kernels of file 3; kernels.h explains the files.
#include "cuda/tokens.cuh"

namespace policy_loss::cuda {
template void launch_tokens_of_file<3>(int, const void*, const Pass&, const Grid&);
}  // namespace policy_loss::cuda

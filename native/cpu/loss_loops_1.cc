// Compiles the inner loops of those policy losses that have an odd index in the list Losses.
#include "cpu/loss_loops.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {
template const LossLoops* loss_loops_of_file<1>(int);
}  // namespace policy_loss::inline POLICY_LOSS_TARGET

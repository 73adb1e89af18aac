// The inner loops of every second policy loss, from the second.
#include "cpu/loss_loops.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {
template const LossLoops* loss_loops_of_slice<1>(int);
}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Stores float32 numbers in arrays of any dtype.
#pragma once

#include <cstdint>

#include "columns.h"
#include "math/target.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Stores n numbers in `out`, which has the given dtype, from index `first` on. Rounds to the nearest number
// if it has 16 bits; every NaN stays a NaN. `in` must be readable up to the next multiple of kGranule
// (tile.h).
void store_numbers(const float* in, int n, DType dtype, void* out, int64_t first);

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// The inputs of an advantage function. Plain structs without types of the C++ library, as in engine/sums.h.
#pragma once

#include <cstdint>

#include "engine/batch.h"

namespace policy_loss {

enum class AdvantageShape : int { kGroup, kRecurrence, kDistill };

// The arrays are borrowed.
struct AdvantageBatch {
  BatchView tokens;                   // its columns are AdvantageColumns
  const double* rewards = nullptr;    // per row
  const double* baselines = nullptr;  // per row
  const int32_t* groups = nullptr;    // per row; rows with equal numbers form a group
  const int32_t* runs = nullptr;      // per row; rows of a group with equal numbers form a run
};

// The inputs of advantage functions in which a NaN or an Infinity is an error. binding.d.ts gives the
// numbers.
enum class NonFiniteInput : int { kNone, kRewards, kTokenRewards, kValues, kBaselines };

// The first value found that is not finite: its array and its row.
struct NonFiniteValue {
  NonFiniteInput input = NonFiniteInput::kNone;
  int64_t row = 0;
};

}  // namespace policy_loss

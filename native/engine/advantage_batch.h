// A batch as advantage functions see it, and what is wrong with one. Plain structs, as in engine/sums.h.
#pragma once

#include <cstdint>

#include "engine/batch.h"

namespace policy_loss {

enum class AdvantageShape : int { kGroup, kRecurrence, kDistill };

// Arrays are borrowed.
struct AdvantageBatch {
  BatchView tokens;                   // columns are AdvantageColumns
  const double* rewards = nullptr;    // per row
  const double* baselines = nullptr;  // per row
  const int32_t* groups = nullptr;    // per row, any numbers
  const int32_t* runs = nullptr;      // per row, likewise, told apart within a group
};

// A number that should be finite and is not: which array it is in, and of which row.
enum class Culprit : int { kNone, kRewards, kTokenRewards, kValues, kBaselines };
struct NotFinite {
  Culprit array = Culprit::kNone;
  int64_t row = 0;
};

}  // namespace policy_loss

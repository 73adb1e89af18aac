// The inputs of an advantage function, as plain structs. They use no types of the C++ standard library;
// engine/sums.h gives the reason.
#pragma once

#include <cstdint>

#include "engine/batch.h"

namespace policy_loss {

struct Spread;  // in advantage/recurrence.h

enum class AdvantageShape : int { kGroup, kRecurrence, kDistill, kBaseline };

// The batch of an advantage function. It does not own its arrays.
struct AdvantageBatch {
  BatchView tokens;                   // its columns are AdvantageColumns
  const double* rewards = nullptr;    // per row
  const double* baselines = nullptr;  // per row
  // Further rewards per row: `named` arrays of one number per row, one after the other, and the weight of
  // each array. Null if the batch has none.
  const double* named_rewards = nullptr;
  const double* reward_weights = nullptr;
  int64_t named = 0;
  const int32_t* groups = nullptr;     // per row; rows with equal numbers form a group
  const int32_t* runs = nullptr;       // per row; rows of a group with equal numbers form a run
  const double* row_tokens = nullptr;  // per row, the unmasked tokens that it stands for; null: its own
  // If the batch is a part of a larger one: the sum of the spreads of all rows of the larger one, by which a
  // recurrence whitens. Null: the batch is complete.
  const Spread* spread = nullptr;
};

// The inputs of advantage functions in which NaN or Infinity is an error. binding.d.ts documents what each
// number means.
enum class NonFiniteInput : int { kNone, kRewards, kTokenRewards, kValues, kBaselines };

// The place of the first value that is not finite: its input and its row.
struct NonFiniteValue {
  NonFiniteInput input = NonFiniteInput::kNone;
  int64_t row = 0;
};

}  // namespace policy_loss

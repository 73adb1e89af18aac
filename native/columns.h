// The building blocks for the declarations of losses, KL estimators and advantage functions: sets of columns,
// their number formats (dtypes), and named options. generated/columns.h numbers the columns.
#pragma once

#include <cstdint>

#include "generated/columns.h"
#include "math/target.h"

namespace policy_loss {

// Returns the set that holds only this column. A set of columns is an unsigned number with one bit per
// column.
PL_FN constexpr unsigned reads(unsigned column) {
  return 1u << column;
}

enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16 };

PL_FN constexpr int64_t size_of(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

// A named option of a function, which is stored in a member of the function's Options. If `choices` is set,
// the caller gives the option as a word, and the member holds the word's index in `choices`. A null pointer
// ends `choices`.
template <class Options>
struct Field {
  const char* name;
  double Options::*member;
  const char* const* choices = nullptr;
};

// The Options of a function that has no options.
struct NoOptions {};

}  // namespace policy_loss

// From a function's options as numbers, in the order of its fields, to the function itself.
#pragma once

#include "engine/registry.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// An array's length by its size, as the type of a class template's member has none before the size is asked
// for.
template <class F>
constexpr int field_count = 0;
template <class F>
requires requires {
  F::fields;
}
constexpr int field_count<F> = static_cast<int>(sizeof F::fields / sizeof F::fields[0]);

template <class F>
inline F make_function(const double* values) {
  typename F::Options options{};
  if constexpr (field_count < F >> 0)
    for (int i = 0; i < field_count<F>; ++i) options.*(F::fields[i].member) = values[i];
  return F(options);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// From a function's options as numbers, in the order of its fields, to the function itself.
#pragma once

#include "engine/registry.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

template <class T>
constexpr int array_length = 0;
template <class T, unsigned long N>
constexpr int array_length<T[N]> = static_cast<int>(N);

template <class F>
constexpr int field_count = 0;
template <class F>
requires requires {
  F::fields;
}
constexpr int field_count<F> = array_length<std::remove_const_t<decltype(F::fields)>>;

template <class F>
inline F make_function(const double* values) {
  typename F::Options options{};
  if constexpr (field_count < F >> 0)
    for (int i = 0; i < field_count<F>; ++i) options.*(F::fields[i].member) = values[i];
  return F(options);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

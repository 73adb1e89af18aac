// From a loss's options as numbers, in the order of its fields, to the loss itself.
#pragma once

#include "engine/registry.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

template <class T>
constexpr int array_length = 0;
template <class T, unsigned long N>
constexpr int array_length<T[N]> = static_cast<int>(N);

template <class L>
constexpr int field_count = array_length<std::remove_const_t<decltype(L::fields)>>;

template <class L>
inline L make_loss(const double* values) {
  typename L::Options options{};
  for (int i = 0; i < field_count<L>; ++i) options.*(L::fields[i].member) = values[i];
  return L(options);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Constructs a function from the array of its options.
#pragma once

#include <cstring>
#include <type_traits>

#include "columns.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The number of options that a function names in `fields`. This uses sizes instead of array types because
// Clang knows the length of a class template's member only after it has been instantiated.
template <class F>
constexpr int field_count() {
  using Options = typename F::Options;
  if constexpr (std::is_empty_v<Options>) {
    return 0;
  } else {
    constexpr int count = static_cast<int>(sizeof F::fields / sizeof F::fields[0]);
    static_assert(sizeof(Options) == count * sizeof(double), "`fields` must name every member of Options");
    return count;
  }
}

// values: the options as numbers, in the order of `fields`.
template <class F>
inline F make_function(const double* values) {
  typename F::Options options{};
  if constexpr (field_count<F>() > 0)
    for (int i = 0; i < field_count<F>(); ++i) options.*(F::fields[i].member) = values[i];
  return F(options);
}

// Large enough for any loss object.
constexpr int kLossBytes = 128;

// Memory for one loss object of a type that is known only by its index.
struct LossStorage {
  alignas(16) unsigned char bytes[kLossBytes];
};

template <class L>
inline void construct(const double* options, LossStorage* storage) {
  static_assert(sizeof(L) <= kLossBytes && std::is_trivially_copyable_v<L>);
  const L loss = make_function<L>(options);
  std::memcpy(storage->bytes, &loss, sizeof loss);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Constructs losses and advantage functions from arrays of option values.
#pragma once

#include <cstring>
#include <type_traits>

#include "columns.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Returns the number of a function's options, which is the length of its array `fields`. It divides sizes,
// because in a class template Clang knows the length of `fields` only after instantiation.
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

// Constructs a function from its option values, which are in the order of `fields`.
template <class F>
inline F make_function(const double* values) {
  typename F::Options options{};
  if constexpr (field_count<F>() > 0)
    for (int i = 0; i < field_count<F>(); ++i) options.*(F::fields[i].member) = values[i];
  return F(options);
}

// The number of bytes that are reserved for a loss object. construct() checks that every loss fits.
constexpr int kLossBytes = 128;

// Memory for one loss object. The type of the object is known only at run time, by its index in Losses
// (engine/registry.h).
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

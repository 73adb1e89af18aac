// Moves numbers between vectors.
#pragma once

#include <utility>

#include "cpu/tile.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The numbers in a vector.
template <class Vector>
constexpr int kWidthOf = sizeof(Vector) / sizeof(Vector{}[0]);

// Returns numbers of two vectors in a row: number `first`, and each next one `step` places further on.
template <int first, int step, class Vector>
PL_FN Vector pick(const Vector& a, const Vector& b) {
  return [&]<int... i>(std::integer_sequence<int, i...>)->Vector {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, (first + step * i)...);
#else
    return __builtin_shuffle(a, b, decltype(a == b){(first + step * i)...});
#endif
  }
  (std::make_integer_sequence<int, kWidthOf<Vector>>{});
}

// Returns the numbers of a vector in reverse order.
template <class Vector>
PL_FN Vector reversed(const Vector& x) {
  return pick<kWidthOf<Vector> - 1, -1>(x, x);
}

// Moves the numbers of a row of vectors to places `distance` further on. The first ones come from `fill`, of
// which all numbers are equal.
template <int distance, int vectors, class Vector>
PL_FN void shift_later(const Vector* x, const Vector& fill, Vector* out) {
  constexpr int width = kWidthOf<Vector>;
  for (int v = 0; v < vectors; ++v) {
    if constexpr (distance < width)
      out[v] = pick<width - distance, 1>(v > 0 ? x[v - 1] : fill, x[v]);
    else
      out[v] = v >= distance / width ? x[v - distance / width] : fill;
  }
}

// Does the same to places `distance` further back. The last ones come from `fill`.
template <int distance, int vectors, class Vector>
PL_FN void shift_earlier(const Vector* x, const Vector& fill, Vector* out) {
  constexpr int width = kWidthOf<Vector>;
  for (int v = 0; v < vectors; ++v) {
    if constexpr (distance < width)
      out[v] = pick<distance, 1>(x[v], v + 1 < vectors ? x[v + 1] : fill);
    else
      out[v] = v + distance / width < vectors ? x[v + distance / width] : fill;
  }
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

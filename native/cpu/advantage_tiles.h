// Helpers for the passes of advantage functions. They read tiles (see tile.h) and find values that are not
// finite.
#pragma once

#include "cpu/target.h"
#include "cpu/tile_reader.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Returns n values of a column as float32, beginning at index `first`; n is at most kTile. If the column is
// not float32, the values are converted into `buffer`. Otherwise the result points into the column.
inline const float* load_tile(const ColumnView& view, int64_t first, int n, float* buffer) {
  if (view.dtype == DType::kFloat32) return static_cast<const float*>(view.data) + first;
  widen(view, first, n, buffer);
  return buffer;
}

PL_FN int is_not_finite(float x) {
  return (float_bits(x) & 0x7f800000) == 0x7f800000 ? 1 : 0;
}

// Returns whether any of the n values is NaN or infinite. If there is a mask, masked values are ignored. It
// is read for every value, because compilers make a branch per token of a read that depends on the value.
inline bool any_not_finite(const float* x, const uint8_t* mask, int n) {
  int bad = 0;
  if (mask) {
#pragma omp simd reduction(| : bad)
    for (int i = 0; i < n; ++i) {
      const int unmasked = mask[i] != 0 ? 1 : 0;
      bad |= is_not_finite(x[i]) & unmasked;
    }
  } else {
#pragma omp simd reduction(| : bad)
    for (int i = 0; i < n; ++i) bad |= is_not_finite(x[i]);
  }
  return bad != 0;
}

PL_FN bool is_finite(double x) {
  return x - x == 0.0;
}

// Returns the index of a row's last unmasked token, or −1 if it has none.
inline int64_t last_unmasked(const uint8_t* mask, int64_t length) {
  while (length > 0 && mask[length - 1] == 0) --length;
  return length - 1;
}

// Records in `bad` that an input has a value in this row that is not finite, unless `bad` already records
// another one.
PL_FN void report(NonFiniteValue* bad, NonFiniteInput input, int64_t row) {
  if (bad->input == NonFiniteInput::kNone) *bad = {input, row};
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

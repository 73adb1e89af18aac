// A batch as the engine sees it: its layout, its columns and its masks, as borrowed views.
//
// All builds of the inner loops share these types. Their functions are PL_FN because the linker could
// otherwise hand one build's copy of a function to another build.
#pragma once

#include <cstdint>

#include "columns.h"

namespace policy_loss {

// A view of one column. data is null if the batch lacks the column.
struct ColumnView {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  bool per_row = false;  // one value per row instead of one per token
};

// The rows of a batch in one flat array of tokens. Rows are either padded to row_length, or packed: row b is
// then between offsets[b] and offsets[b + 1].
struct Layout {
  int64_t rows = 0;
  int64_t row_length = 0;            // T; of packed rows that of the longest
  const int32_t* offsets = nullptr;  // [rows + 1] if packed, else null

  PL_FN int64_t begin(int64_t row) const { return offsets ? offsets[row] : row * row_length; }
  PL_FN int64_t length(int64_t row) const {
    return offsets ? static_cast<int64_t>(offsets[row + 1]) - offsets[row] : row_length;
  }
  PL_FN int64_t tokens() const { return offsets ? offsets[rows] : rows * row_length; }
};

struct BatchView {
  Layout layout;
  ColumnView column[kColumns];
  const uint8_t* mask = nullptr;      // per token; 0: masked
  const uint8_t* expert = nullptr;    // per row; null: no row is an expert's
  const uint32_t* repeats = nullptr;  // per row, how often it counts (0: not at all); null: each counts once

  // 0 for a usual row, 1 for an expert's.
  PL_FN int kind(int64_t row) const { return expert && expert[row] ? 1 : 0; }
  PL_FN uint32_t repeats_of(int64_t row) const { return repeats ? repeats[row] : 1; }
};

}  // namespace policy_loss

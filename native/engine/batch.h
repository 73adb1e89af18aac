// What the engine sees of a batch: its layout, its columns and its masks, as borrowed views. Shared by all
// builds of the inner loops, hence PL_FN: a copy out of line could be the wrong build's.
#pragma once

#include <cstdint>

#include "loss/loss.h"

namespace policy_loss {

enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16 };

PL_FN int64_t size_of(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

// One value per token, or one per row where per_row is set. Not given: data is null.
struct ColumnView {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  bool per_row = false;
};

// Rows of tokens in one flat array: padded to `columns` each, or packed between offsets[b] and offsets[b +
// 1].
struct Layout {
  int64_t rows = 0;
  int64_t columns = 0;               // T; of packed rows the longest one's length
  const int32_t* offsets = nullptr;  // rows + 1 of them, when packed

  PL_FN int64_t begin(int64_t row) const { return offsets ? offsets[row] : row * columns; }
  PL_FN int64_t length(int64_t row) const {
    return offsets ? static_cast<int64_t>(offsets[row + 1]) - offsets[row] : columns;
  }
  PL_FN int64_t tokens() const { return offsets ? offsets[rows] : rows * columns; }
};

struct BatchView {
  Layout layout;
  ColumnView column[kColumns];
  const uint8_t* mask = nullptr;    // per token; 0: not to be read
  const uint8_t* expert = nullptr;  // per row; null: no row is an expert's
  // Per row, how often it counts; null: each once. A row with 0 is as if it were not there.
  const uint32_t* copies = nullptr;

  PL_FN int kind(int64_t row) const { return expert && expert[row] ? 1 : 0; }
  PL_FN uint32_t copies_of(int64_t row) const { return copies ? copies[row] : 1; }
};

}  // namespace policy_loss

// A batch for the engines: its layout, its columns and its mask. All of them are views of memory that the
// caller owns.
//
// The inner loops are compiled several times (math/target.h), and all builds share these types. The functions
// of the types are inlined (PL_FN), because the linker could otherwise give one build's copy of a function to
// another build.
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

// A view of the array that receives a gradient: one number per token, in any dtype. data is null if the
// gradient is not wanted.
struct GradientView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;

  GradientView() = default;
  GradientView(float* numbers) : data(numbers) {}
  GradientView(uint16_t* bits, DType format) : data(bits), dtype(format) {}

  PL_FN explicit operator bool() const { return data != nullptr; }
  // Returns the address of a token's number.
  PL_FN void* at(int64_t token) const { return static_cast<char*>(data) + token * size_of(dtype); }
  // Returns the numbers of an array of float32.
  PL_FN float* floats() const { return static_cast<float*>(data); }
};

// Tells where the rows of a batch lie in its flat array of tokens. Rows are either padded to row_length or
// packed. Packed row b consists of the tokens from offsets[b] to offsets[b + 1] − 1.
struct Layout {
  int64_t rows = 0;
  int64_t row_length = 0;            // T; for packed rows, the length of the longest row
  const int32_t* offsets = nullptr;  // [rows + 1] if packed, else null

  PL_FN int64_t begin(int64_t row) const { return offsets ? offsets[row] : row * row_length; }
  PL_FN int64_t length(int64_t row) const {
    return offsets ? static_cast<int64_t>(offsets[row + 1]) - offsets[row] : row_length;
  }
  PL_FN int64_t tokens() const { return offsets ? offsets[rows] : rows * row_length; }
  // Returns the row to which a token belongs.
  PL_FN int64_t row_of(int64_t token) const {
    if (!offsets) return token / row_length;
    int64_t first = 0, last = rows;
    while (last - first > 1) {
      const int64_t middle = first + (last - first) / 2;
      if (offsets[middle] <= token)
        first = middle;
      else
        last = middle;
    }
    return first;
  }
};

struct BatchView {
  Layout layout;
  ColumnView column[kColumns];
  const uint8_t* mask = nullptr;               // per token; 0 if masked
  const uint8_t* expert = nullptr;             // per row, not 0 for an expert's; null if there are none
  const uint32_t* repeats = nullptr;           // per row, how often it counts; null: each counts once
  const double* row_column[kRowColumns] = {};  // per row; null if the batch lacks the column

  // Returns the kind of a row: 0 for a usual row, which the policy sampled, and 1 for a row that an expert
  // wrote.
  PL_FN int kind(int64_t row) const { return expert && expert[row] ? 1 : 0; }
  PL_FN uint32_t repeats_of(int64_t row) const { return repeats ? repeats[row] : 1; }
};

}  // namespace policy_loss

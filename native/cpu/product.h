// Products of matrices, of which threads compute parts.
#pragma once

#include <cstdint>

#include "columns.h"

namespace policy_loss::cpu {

// Numbers in rows.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t stride = 0;             // the distance between two rows
  const int64_t* rows = nullptr;  // the index of each row in the data; null if they are all of it, in order
};

// The vectors that one side of a product multiplies: the rows of a matrix, or its columns.
struct Vectors {
  Matrix matrix;
  bool are_columns = false;
};

// out(i, j) is the sum of left_i·right_j over their terms. Its bits depend only on these two vectors and on
// what the sum begins with.
struct Product {
  Vectors left, right;
  int64_t rows = 0, columns = 0;  // the numbers of left and right vectors
  int64_t terms = 0;
  void* out = nullptr;
  DType out_dtype = DType::kFloat32;
  int64_t out_stride = 0;
  const int64_t* out_rows = nullptr;  // as Matrix::rows
  // What is added to each column; null for nothing.
  const void* bias = nullptr;
  DType bias_dtype = DType::kFloat32;
  // Whether the terms are added one after another. Then the sums over the first and the further terms can be
  // computed by two products. Otherwise, the sums over chunks of terms are added up, which is more precise.
  bool in_order = false;
  bool adds = false;  // whether the sums begin with the numbers in `out`
};

// The elements [first_row, last_row) x [first_column, last_column) of a product.
struct ProductPart {
  int64_t first_row, last_row, first_column, last_column;
};

// The largest part, and the terms of a chunk.
constexpr int kProductRows = 192;
constexpr int kProductColumns = 384;
constexpr int kProductTerms = 256;
// The columns that a loop computes at most at once.
constexpr int kMostTileColumns = 32;

// The memory that the computation of a part needs. It fits into the second cache level.
struct alignas(64) ProductMemory {
  float left[kProductRows * kProductTerms];
  float right[kMostTileColumns * kProductTerms];
  float sums[kProductRows * kProductColumns];
};

}  // namespace policy_loss::cpu

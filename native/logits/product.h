// Products of matrices.
#pragma once

#include <cstdint>

#include "columns.h"

namespace policy_loss {

// Numbers in rows.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t stride = 0;             // the distance between two rows
  const int64_t* rows = nullptr;  // the index of each row in the data; null if they are all of it, in order

  PL_FN int64_t begin(int64_t row) const { return (rows ? rows[row] : row) * stride; }
};

// The vectors that one side of a product multiplies: the rows of a matrix, or its columns.
struct Vectors {
  Matrix matrix;
  bool are_columns = false;

  // Returns the index of a term in the data of the matrix.
  PL_FN int64_t index(int64_t vector, int64_t term) const {
    return are_columns ? matrix.begin(term) + vector : matrix.begin(vector) + term;
  }
};

// The terms that are added up before their sum is added to that of the terms before.
constexpr int kProductTerms = 256;

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
  // What each sum of a column begins with; null for 0.
  const void* bias = nullptr;
  DType bias_dtype = DType::kFloat32;
  // Whether all terms are added one after another. Then the sums over the first and over the further terms
  // can be computed by two products. Chunks of terms are more precise.
  bool in_order = false;
  bool adds = false;  // whether the sums begin with the numbers in `out`, which are float32

  PL_FN int64_t begin_of_out(int64_t row) const { return (out_rows ? out_rows[row] : row) * out_stride; }
};

}  // namespace policy_loss

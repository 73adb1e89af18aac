// The parts of products that threads compute.
#pragma once

#include "logits/product.h"

namespace policy_loss::cpu {

// The elements [first_row, last_row) x [first_column, last_column) of a product.
struct ProductPart {
  int64_t first_row, last_row, first_column, last_column;
};

// The size of the largest part.
constexpr int kProductRows = 192;
constexpr int kProductColumns = 384;
// The columns that a loop computes at most at once.
constexpr int kMostTileColumns = 32;

// The memory that the computation of a part needs. It fits into the second cache level.
struct alignas(64) ProductMemory {
  float left[kProductRows * kProductTerms];
  float right[kMostTileColumns * kProductTerms];
  float sums[kProductRows * kProductColumns];
  float after_sums[64];  // store_numbers() (narrow.h) reads beyond the sums
};

}  // namespace policy_loss::cpu

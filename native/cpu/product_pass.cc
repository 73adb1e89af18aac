// A part of a product is computed a chunk of terms at a time. For each chunk, the vectors are copied to
// panels: a panel has the terms of as many vectors as a tile has rows or columns, term after term. A tile is
// so large that its sums fill the processor's registers.
#include "cpu/product_pass.h"

#include "cpu/narrow.h"
#include "cpu/tile.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {
namespace {

using cpu::ProductMemory;
using cpu::ProductPart;

// AVX-512 and NEON have 32 vector registers, the others 16.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 6;
#endif
constexpr int kTileColumns = 2 * kVector;
static_assert(kTileColumns <= cpu::kMostTileColumns && cpu::kProductColumns % kTileColumns == 0 &&
              cpu::kProductRows % kTileRows == 0);

struct alignas(64) Sums {
  float of[kTileRows][kTileColumns];
};

// Adds the products of two panels to the sums of a tile.
void add_products(const float* left, const float* right, int terms, Sums* tile) {
  Sums sums = *tile;
  for (int k = 0; k < terms; ++k) {
#pragma GCC unroll 12
    for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 2
      for (int at = 0; at < kTileColumns; at += kVector) {
        PL_FOR_LANES_COMPACTLY
        for (int l = at; l < at + kVector; ++l)
          sums.of[i][l] = fma(left[k * kTileRows + i], right[k * kTileColumns + l], sums.of[i][l]);
      }
    }
  }
  *tile = sums;
}

void add(const Sums& more, Sums* tile) {
  for (int i = 0; i < kTileRows; ++i)
    for (int l = 0; l < kTileColumns; ++l) tile->of[i][l] += more.of[i][l];
}

PL_FN const void* address(const void* data, DType dtype, int64_t index) {
  return static_cast<const char*>(data) + index * size_of(dtype);
}

// Calls use(values), where values[i] is number first + i of the data.
template <class Use>
void with_values(const void* data, DType dtype, int64_t first, const Use& use) {
  const void* const begin = address(data, dtype, first);
  if (dtype == DType::kFloat32)
    use(static_cast<const float*>(begin));
  else if (dtype == DType::kFloat16)
    use(Float16s{static_cast<const uint16_t*>(begin)});
  else
    use(BFloat16s{static_cast<const uint16_t*>(begin)});
}

// Copies the terms [first_term, first_term + terms) of the vectors [first, first + count) to a panel of
// `width` vectors. The other vectors of the panel are 0.
template <int width>
void fill_panel(const Vectors& vectors, int64_t first, int count, int64_t first_term, int terms,
                float* panel) {
  const Matrix& matrix = vectors.matrix;
  if (vectors.are_columns) {
    for (int k = 0; k < terms; ++k)
      with_values(matrix.data, matrix.dtype, vectors.index(first, first_term + k), [&](auto row) {
        for (int l = 0; l < count; ++l) panel[k * width + l] = row[l];
      });
  } else {
    for (int l = 0; l < count; ++l)
      with_values(matrix.data, matrix.dtype, vectors.index(first + l, first_term), [&](auto row) {
        for (int k = 0; k < terms; ++k) panel[k * width + l] = row[k];
      });
  }
  if (count < width)
    for (int k = 0; k < terms; ++k)
      for (int l = count; l < width; ++l) panel[k * width + l] = 0.0f;
}

// Calls visit(tile, row, rows, column, columns) for each tile of a part, in the order in which tiles are
// stored. The tile has `rows` rows from `row` on, and the columns likewise.
template <class Visit>
void for_each_tile(const ProductPart& part, ProductMemory* memory, const Visit& visit) {
  Sums* tile = reinterpret_cast<Sums*>(memory->sums);
  for (int64_t column = part.first_column; column < part.last_column; column += kTileColumns)
    for (int64_t row = part.first_row; row < part.last_row; row += kTileRows)
      visit(tile++, row, static_cast<int>(at_most<int64_t>(part.last_row - row, kTileRows)), column,
            static_cast<int>(at_most<int64_t>(part.last_column - column, kTileColumns)));
}

// Sets the sums to what they begin with.
void begin_sums(const Product& product, const ProductPart& part, ProductMemory* memory) {
  for_each_tile(part, memory, [&](Sums* tile, int64_t row, int rows, int64_t column, int columns) {
    *tile = {};
    if (product.adds)
      for (int i = 0; i < rows; ++i)
        memcpy(tile->of[i], static_cast<const float*>(product.out) + product.begin_of_out(row + i) + column,
               columns * sizeof(float));
    if (product.bias)
      with_values(product.bias, product.bias_dtype, column, [&](auto bias) {
        for (int i = 0; i < rows; ++i)
          for (int l = 0; l < columns; ++l) tile->of[i][l] += bias[l];
      });
  });
}

// Adds the products of a chunk of terms.
void add_chunk(const Product& product, const ProductPart& part, int64_t first_term, int terms,
               ProductMemory* memory) {
  float* panel = memory->left;
  for (int64_t row = part.first_row; row < part.last_row; row += kTileRows) {
    const int rows = static_cast<int>(at_most<int64_t>(part.last_row - row, kTileRows));
    fill_panel<kTileRows>(product.left, row, rows, first_term, terms, panel);
    panel += kTileRows * kProductTerms;
  }
  for_each_tile(part, memory, [&](Sums* tile, int64_t row, int, int64_t column, int columns) {
    if (row == part.first_row) {
      fill_panel<kTileColumns>(product.right, column, columns, first_term, terms, memory->right);
      panel = memory->left;
    }
    if (product.in_order) {
      add_products(panel, memory->right, terms, tile);
    } else {
      Sums chunk = {};
      add_products(panel, memory->right, terms, &chunk);
      add(chunk, tile);
    }
    panel += kTileRows * kProductTerms;
  });
}

}  // namespace

void multiply(const Product& product, const ProductPart& part, ProductMemory* memory) {
  begin_sums(product, part, memory);
  for (int64_t first = 0; first < product.terms; first += kProductTerms) {
    const int terms = static_cast<int>(at_most<int64_t>(product.terms - first, kProductTerms));
    add_chunk(product, part, first, terms, memory);
  }
  for_each_tile(part, memory, [&](Sums* tile, int64_t row, int rows, int64_t column, int columns) {
    for (int i = 0; i < rows; ++i)
      store_numbers(tile->of[i], columns, product.out_dtype, product.out,
                    product.begin_of_out(row + i) + column);
  });
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// The kernel of products of matrices. A block computes a tile of sums at a time. It reads the terms of the
// tile's vectors in slices, through shared memory.
#pragma once

#include "cuda/warp.cuh"
#include "logits/product.h"

namespace policy_loss::cuda {

// The rows and columns of a tile, and the terms of a slice.
constexpr int kTileSide = 64;
constexpr int kSliceTerms = 16;
// Each thread computes kOwnRows x kOwnColumns sums of a tile. Its rows are kRowsApart apart, and its columns
// kColumnsApart, so that neighbouring threads read neighbouring numbers.
constexpr int kColumnsApart = 16;
constexpr int kRowsApart = kThreads / kColumnsApart;
constexpr int kOwnRows = kTileSide / kRowsApart;
constexpr int kOwnColumns = kTileSide / kColumnsApart;
static_assert(kProductTerms % kSliceTerms == 0);

// The terms of some vectors. The rows have one number more, so that threads that write a column use different
// banks.
using ProductSlice = float[kSliceTerms][kTileSide + 1];

__device__ __forceinline__ float number_of(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return dtype == DType::kFloat16 ? float_of_half(bits) : float_of_bfloat16(bits);
}

// Copies terms of the vectors from `first` on to a slice. Those that the product lacks are 0.
__device__ __forceinline__ void load_slice(const Vectors& vectors, int64_t first, int64_t vectors_end,
                                           int64_t first_term, int64_t terms_end, ProductSlice& slice) {
  for (int n = threadIdx.x; n < kSliceTerms * kTileSide; n += kThreads) {
    const int vector = vectors.are_columns ? n % kTileSide : n / kSliceTerms;
    const int term = vectors.are_columns ? n / kTileSide : n % kSliceTerms;
    const bool is_there = first + vector < vectors_end && first_term + term < terms_end;
    slice[term][vector] = is_there ? number_of(vectors.matrix.data, vectors.matrix.dtype,
                                               vectors.index(first + vector, first_term + term))
                                   : 0.0f;
  }
}

// A thread's sums of a tile.
struct OwnSums {
  float of[kOwnRows][kOwnColumns] = {};

  // Calls visit(sum, row, column) for each sum that the product has.
  template <class Visit>
  __device__ __forceinline__ void for_each(const Product& product, int64_t first_row, int64_t first_column,
                                           const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) {
        const int64_t row = first_row + threadIdx.x / kColumnsApart + i * kRowsApart;
        const int64_t column = first_column + threadIdx.x % kColumnsApart + j * kColumnsApart;
        if (row < product.rows && column < product.columns) visit(of[i][j], row, column);
      }
  }

  __device__ __forceinline__ void add_products(const ProductSlice& left, const ProductSlice& right) {
    for (int k = 0; k < kSliceTerms; ++k) {
      float column[kOwnColumns];
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j)
        column[j] = right[k][threadIdx.x % kColumnsApart + j * kColumnsApart];
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const float row = left[k][threadIdx.x / kColumnsApart + i * kRowsApart];
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) of[i][j] = fma(row, column[j], of[i][j]);
      }
    }
  }

  __device__ __forceinline__ void add(const OwnSums& more) {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i)
#pragma unroll
      for (int j = 0; j < kOwnColumns; ++j) of[i][j] += more.of[i][j];
  }
};

__device__ __forceinline__ void store_sum(const Product& product, float sum, int64_t at) {
  if (product.out_dtype == DType::kFloat32)
    static_cast<float*>(product.out)[at] = sum;
  else
    static_cast<uint16_t*>(product.out)[at] =
        product.out_dtype == DType::kFloat16 ? half_of_float(sum) : bfloat16_of_any(sum);
}

__global__ void __launch_bounds__(kThreads) product_kernel(Product product) {
  __shared__ ProductSlice left;
  __shared__ ProductSlice right;
  const int64_t per_column = (product.rows + kTileSide - 1) / kTileSide;
  const int64_t tiles = per_column * ((product.columns + kTileSide - 1) / kTileSide);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t row = tile % per_column * kTileSide;
    const int64_t column = tile / per_column * kTileSide;
    OwnSums sums;
    sums.for_each(product, row, column, [&](float& sum, int64_t i, int64_t j) {
      if (product.adds) sum = static_cast<const float*>(product.out)[product.begin_of_out(i) + j];
      if (product.bias) sum += number_of(product.bias, product.bias_dtype, j);
    });
    for (int64_t chunk = 0; chunk < product.terms; chunk += kProductTerms) {
      const int64_t end = min(chunk + kProductTerms, product.terms);
      OwnSums of_chunk;
      if (product.in_order) of_chunk = sums;
      for (int64_t term = chunk; term < end; term += kSliceTerms) {
        __syncthreads();
        load_slice(product.left, row, product.rows, term, end, left);
        load_slice(product.right, column, product.columns, term, end, right);
        __syncthreads();
        of_chunk.add_products(left, right);
      }
      if (product.in_order)
        sums = of_chunk;
      else
        sums.add(of_chunk);
    }
    sums.for_each(product, row, column, [&](float& sum, int64_t i, int64_t j) {
      store_sum(product, sum, product.begin_of_out(i) + j);
    });
  }
}

}  // namespace policy_loss::cuda

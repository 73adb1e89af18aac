// Cuts rows into tiles of 128 tokens, so that several warps can compute one row.
//
// A row's first tile begins at the row's first token, rounded down to a whole quad. Where tiles begin
// does not depend on the device, so the results of a recurrence do not depend on it either.
#pragma once

#include "cuda/warp.cuh"

namespace policy_loss::cuda {

// The range of a row's tokens, and where the row's first tile begins.
struct RowRange {
  int64_t row, begin, end, aligned;

  __device__ __forceinline__ RowRange(const Layout& layout, int64_t row)
      : row(row), begin(layout.begin(row)), end(begin + layout.length(row)), aligned(begin / kQuad * kQuad) {}

  // Returns where the row's last tile begins, or a number below `aligned` if the row has no tokens. The
  // argument is the number of tokens per tile.
  __device__ __forceinline__ int64_t last(int64_t tile) const {
    return end > begin ? aligned + (end - 1 - aligned) / tile * tile : aligned - tile;
  }
  __device__ __forceinline__ bool contains(int64_t from, int64_t to) const {
    return from >= begin && to <= end;
  }
};

// Returns the index of a row's first tile of `length` tokens. The tiles of a row have consecutive
// indices. An index between those of two rows may be unused.
template <int64_t length = kTile>
PL_FN int64_t first_tile(const Layout& layout, int64_t row) {
  return layout.begin(row) / length + row;
}
// Returns a number that is larger than the index of any tile of the batch.
template <int64_t length = kTile>
PL_FN int64_t count_tiles(const ChunkedBatch& pass) {
  return pass.tokens / length + pass.batch.layout.rows;
}

// Returns the row to which the index of a tile belongs.
template <int64_t length = kTile>
__device__ __forceinline__ int64_t row_of_tile(const Layout& layout, int64_t index) {
  int64_t low = 0, high = layout.rows - 1;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (first_tile<length>(layout, middle + 1) > index)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// Divides the tiles of the batch among the warps. Calls visit(row, at, index) for each tile that this warp
// gets. The tile begins at token `at` of the batch.
template <class Visit>
__device__ __forceinline__ void for_tiles(const ChunkedBatch& pass, Visit visit) {
  const Layout& layout = pass.batch.layout;
  const int64_t all = count_tiles(pass);
  const int64_t per_warp = (all + all_warps() - 1) / all_warps();
  int64_t index = first_warp() * per_warp;
  const int64_t last = min(index + per_warp, all);
  if (index >= last) return;
  int64_t row = row_of_tile(layout, index);
  for (; index < last; ++index) {
    if (index >= first_tile(layout, row + 1)) ++row;
    const RowRange range(layout, row);
    const int64_t at = range.aligned + (index - first_tile(layout, row)) * kTile;
    if (at < range.end && range.begin < range.end) visit(range, at, index);
  }
}

// Returns the number of tiles of a row.
__device__ __forceinline__ int64_t count_tiles(const RowRange& row) {
  return (row.last(kTile) - row.aligned) / kTile + 1;
}

// Returns the first unmasked token in [from, end), or `end` if all of them are masked. All lanes of a warp
// search together. `from` must be a multiple of kQuad.
__device__ __forceinline__ int64_t first_unmasked(const uint8_t* mask, int64_t from, int64_t end) {
  constexpr int of_warp = kWarp * kGranule;
  constexpr int loads = 4;
  const int lane = threadIdx.x % kWarp;
  for (int64_t at = from / kGranule * kGranule; at < end; at += loads * of_warp) {
    uint4 bytes[loads];
#pragma unroll
    for (int k = 0; k < loads; ++k) {
      const int64_t i = at + k * of_warp + lane * kGranule;
      bytes[k] = {0, 0, 0, 0};
      if (i < end) bytes[k] = load<Reuse::kLater>(reinterpret_cast<const uint4*>(mask + i));
    }
#pragma unroll
    for (int k = 0; k < loads; ++k) {
      const int64_t i = at + k * of_warp + lane * kGranule;
      const unsigned all = mask_bits(bytes[k].x) | mask_bits(bytes[k].y) << 4 | mask_bits(bytes[k].z) << 8 |
                           mask_bits(bytes[k].w) << 12;
      const unsigned live = all & bits_within<kGranule>(i, from, end);
      const unsigned lanes = __ballot_sync(kAllLanes, live != 0);
      if (lanes == 0) continue;
      const int first = __ffs(lanes) - 1;
      return at + k * of_warp + first * kGranule + __ffs(__shfl_sync(kAllLanes, live, first)) - 1;
    }
  }
  return end;
}

}  // namespace policy_loss::cuda

// Cuts rows into stretches of 128 tokens, so that several warps can compute one row.
//
// A row's first stretch begins at the row's first token, rounded down to a whole quad. Where stretches begin
// does not depend on the device, so the results of a recurrence do not depend on it either.
#pragma once

#include "cuda/warp.cuh"

namespace policy_loss::cuda {

// The range of a row's tokens, and where the row's first stretch begins.
struct RowRange {
  int64_t row, begin, end, aligned;

  __device__ __forceinline__ RowRange(const Layout& layout, int64_t row)
      : row(row), begin(layout.begin(row)), end(begin + layout.length(row)), aligned(begin / kQuad * kQuad) {}

  // Returns where the row's last stretch begins, or a number below `aligned` if the row has no tokens. The
  // argument is the number of tokens per stretch.
  __device__ __forceinline__ int64_t last(int64_t stretch) const {
    return end > begin ? aligned + (end - 1 - aligned) / stretch * stretch : aligned - stretch;
  }
  __device__ __forceinline__ bool contains(int64_t from, int64_t to) const {
    return from >= begin && to <= end;
  }
};

// Returns the index of a row's first stretch of `length` tokens. The stretches of a row have consecutive
// indices. An index between those of two rows may be unused.
template <int64_t length = kStretch>
PL_FN int64_t first_stretch(const Layout& layout, int64_t row) {
  return layout.begin(row) / length + row;
}
// Returns a number that is larger than the index of any stretch of the batch.
template <int64_t length = kStretch>
PL_FN int64_t count_stretches(const SpannedBatch& pass) {
  return pass.tokens / length + pass.batch.layout.rows;
}

// Returns the row to which the index of a stretch belongs.
template <int64_t length = kStretch>
__device__ __forceinline__ int64_t row_of_stretch(const Layout& layout, int64_t index) {
  int64_t low = 0, high = layout.rows - 1;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (first_stretch<length>(layout, middle + 1) > index)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// Calls visit(row, at, index) for each stretch of this warp's share of the batch. The stretch begins at token
// `at` of the batch.
template <class Visit>
__device__ __forceinline__ void for_stretches(const SpannedBatch& pass, Visit visit) {
  const Layout& layout = pass.batch.layout;
  const int64_t all = count_stretches(pass);
  const int64_t share = (all + all_warps() - 1) / all_warps();
  int64_t index = first_warp() * share;
  const int64_t last = min(index + share, all);
  if (index >= last) return;
  int64_t row = row_of_stretch(layout, index);
  for (; index < last; ++index) {
    if (index >= first_stretch(layout, row + 1)) ++row;
    const RowRange range(layout, row);
    const int64_t at = range.aligned + (index - first_stretch(layout, row)) * kStretch;
    if (at < range.end && range.begin < range.end) visit(range, at, index);
  }
}

// Returns the number of stretches of a row.
__device__ __forceinline__ int64_t stretches_of(const RowRange& row) {
  return (row.last(kStretch) - row.aligned) / kStretch + 1;
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

// Sums over the tokens of one row, for losses that need these sums before they can compute a token of the
// row.
#pragma once

#include "cpu/loops.h"
#include "cpu/target.h"
#include "cpu/tile_reader.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Returns whether a sum over `tokens` tokens ends before the given position of a row that is read up to
// `last`.
PL_FN bool ends_sum(int64_t position, int64_t last, int64_t tokens) {
  return position == last || position % tokens == 0;
}

// Returns the sum of the loss's row_term() over the unmasked tokens in [first, last) of the reader's current
// row. `first` must be a multiple of kChunkTokens.
inline double sum_row(const LossLoops& loops, const void* loss, TileReader& reader, int64_t first,
                      int64_t last) {
  double total = 0;
  LaneSum<double> sum;
  for (int64_t at = first; at < last; at += kTile) {
    const int n = static_cast<int>(last - at < kTile ? last - at : kTile);
    const int length = reader.unmasked_length(at, n);
    reader.tiles(at, length, MaskUse::kLanes, [&](const TileColumns& in, int padded, int64_t, int) {
      loops.row_sum_tile(loss, in, padded, &sum);
    });
    if (ends_sum(at + n, last, kChunkTokens)) total += sum.take();
  }
  return total;
}

// Returns the number of tokens in [first, last) of the reader's current row that have a negative advantage.
// Masked tokens count as well.
inline double count_negative_advantages(TileReader& reader, int64_t first, int64_t last) {
  double total = 0;
  for (int64_t at = first; at < last; at += kTile) {
    const int n = static_cast<int>(last - at < kTile ? last - at : kTile);
    reader.tiles(at, n, MaskUse::kBytes, [&](const TileColumns& in, int, int64_t, int real) {
      total += in.with_type([&]<class Values>() {
        const Values advantages = in.get<Values>(kAdvantages);
        int count = 0;
#pragma omp simd reduction(+ : count)
        for (int i = 0; i < real; ++i) count += advantages[i] < 0.0f ? 1 : 0;
        return count;
      });
    });
  }
  return total;
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// The KL pass on one chunk of a batch. It writes KL values, or rewards minus a KL penalty.
#pragma once

#include "cpu/row_sums.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Subtracts the KL penalty in one tile. For an unmasked token it writes base − scale·kl to `out`,
// and for a masked one it writes base. `values` holds the kl of each token. Adds kl of the unmasked tokens to
// `sum`.
inline void penalise(const uint8_t* mask, const float* values, const float* base, float scale, int n,
                     float* out, LaneSum<float>* sum) {
#pragma omp simd
  for (int i = 0; i < n; ++i) {
    const float whole = base[i], penalised = whole - mul_no_nan(scale, values[i]);
    out[i] = mask[i] != 0 ? penalised : whole;
  }
  for_lanes(n, [&](int lane, int i) { sum->lane[lane] += if_unmasked_by(mask[i], values[i]); });
}

inline void kl_pass(const cpu::KlPass& pass, const cpu::Chunk& chunk, cpu::RowTotals* partial) {
  const BatchView& batch = *pass.batch;
  const KlLoops& kl = kl_loops(pass.estimator);
  TileReader reader(batch, kl.columns);
  alignas(64) float values[kTile];
  const float scale = static_cast<float>(pass.scale);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const int64_t begin = batch.layout.begin(row);
    const int64_t last = chunk.last_token_of_row(batch.layout, row);
    reader.start_row(row);
    double sum = 0, chunk_sum = 0;
    LaneSum<float> tile_sum;
    int64_t count = 0;
    for (int64_t at = chunk.first_token_of_row(); at < last; at += kTile) {
      const int n = static_cast<int>(last - at < kTile ? last - at : kTile);
      reader.tiles(at, n, MaskUse::kBytes,
                   [&](const TileColumns& in, int padded, int64_t position, int real) {
                     float* out = pass.out + begin + position;
                     kl.values(in, padded, values);
                     if (pass.base) {
                       penalise(in.mask, values, pass.base + begin + position, scale, real, out, &tile_sum);
                       count += count_mask(in.mask, real);
                     } else {
                       memcpy(out, values, real * sizeof(float));
                     }
                   });
      chunk_sum += tile_sum.take();
      if (!ends_sum(at + n, last, kChunkTokens)) continue;
      sum += chunk_sum;
      chunk_sum = 0;
    }
    if (!pass.row_means) continue;
    if (chunk.is_within_row())
      *partial = {.tokens = count, .sum = sum};
    else
      pass.row_means[row] = sum / (static_cast<double>(count) + 1e-8);
  }
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

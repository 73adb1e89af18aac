// The kernels of recurrences (recurrence.cuh) for batches of few, long rows. Every warp of the GPU computes
// tiles of its own, so that even a single row keeps the whole GPU busy.
//
// The first kernel computes each tile as if no token followed it. The second finds x after each tile,
// with one multiplication and one addition per tile. The third computes the tiles again, now with x
// after them. They do the operations of recurrence_kernel() in the same order, so x has the same bits.
#pragma once

#include "cuda/recurrence.cuh"

namespace policy_loss::cuda {

// Loads and reads a lane's tokens of the tile that begins at token `at`.
template <class F, bool checks, Reuse reuse>
__device__ __forceinline__ RecurrenceQuad load_tile(const AdvantagePass& pass, const RowRange& row,
                                                    int64_t at) {
  const int64_t i = at + threadIdx.x % kWarp * kQuad;
  return read_quad<F, checks>(pass, row, at, load_recurrence_quad<F, true, reuse>(pass, row, i));
}

// Finds out what a tile needs to know about the tokens after it.
template <class F>
__device__ __forceinline__ TileState look_ahead(const AdvantagePass& pass, const RowRange& row, int64_t at,
                                                const RecurrenceQuad& quad) {
  TileState state{};
  const bool rewards_rows = !pass.batch.column[kTokenLevelRewardsInput].data;
  constexpr bool reads_next = F::traits.skips_masked && F::traits.reads_values;
  if (!reads_next && !rewards_rows) return state;
  if (__ballot_sync(kAllLanes, quad.live != 0) == 0) return state;
  const int64_t next = first_unmasked(pass.batch.mask, at + kTile, row.end);
  state.rewarded = rewards_rows && next >= row.end;
  if (reads_next && next < row.end) state.next_value = load_one(pass.batch.column[kValuesInput], next);
  return state;
}

// If the row's reward belongs to the last unmasked token of this tile, puts it there.
__device__ __forceinline__ void reward_last(const AdvantagePass& pass, const RowRange& row, bool rewarded,
                                            RecurrenceQuad* quad) {
  if (rewarded) quad->reward(last_unmasked(quad->live, threadIdx.x % kWarp), pass.rewards[row.row]);
}

// A tile that a warp has loaded and scanned.
template <class F>
struct ScannedTile {
  const RecurrenceQuad quad;
  const QuadTerms<F> terms;
  const DecayPowers powers;
  const double suffix;  // of scan_warp()

  __device__ __forceinline__ ScannedTile(const F& f, const RecurrenceQuad& quad, int lane,
                                         const DecayPowers& uniform, float next_value)
      : quad(quad),
        terms(f, quad, next_value_of(quad, lane, next_value)),
        powers(F::traits.skips_masked ? DecayPowers::skipping(terms.of_quad, lane) : uniform),
        suffix(scan_warp(terms.suffix, powers, lane)) {}

 private:
  static __device__ __forceinline__ float next_value_of(const RecurrenceQuad& quad, int lane, float next) {
    if constexpr (F::traits.skips_masked)
      return next_unmasked_value(quad, lane, &next);
    else if constexpr (F::traits.reads_values)
      return value_after(quad, lane, quad.after);
    else
      return 0;
  }
};

// Computes the sum of each tile. Reports inputs that are not finite.
template <class F>
__global__ void __launch_bounds__(kThreads, kRecurrenceBlocks)
    tile_sums_kernel(const AdvantagePass pass, const F f) {
  const int lane = threadIdx.x % kWarp;
  const DecayPowers uniform(f.decay, lane);
  for_tiles(pass, [&](const RowRange& row, int64_t at, int64_t index) {
    RecurrenceQuad quad = load_tile<F, true, Reuse::kLater>(pass, row, at);
    TileState state = look_ahead<F>(pass, row, at, quad);
    reward_last(pass, row, state.rewarded, &quad);
    const ScannedTile<F> tile(f, quad, lane, uniform, state.next_value);
    state.x = tile.suffix;
    state.decay = tile.powers.of_warp;
    if (lane == 0) pass.tiles[index] = state;
  });
}

// Replaces x at the first token of each tile with x after the tile. One warp computes one row. Its
// lanes load 32 tiles at once, one load ahead, and all of them compute the same chain.
static __global__ void __launch_bounds__(kThreads) tile_chain_kernel(const AdvantagePass pass) {
  const Layout& layout = pass.batch.layout;
  const int lane = threadIdx.x % kWarp;
  for (int64_t index = first_warp(); index < layout.rows; index += all_warps()) {
    const RowRange row(layout, index);
    TileState* const states = pass.tiles + first_tile(layout, index);
    double carried = 0;
    double x = 0, decay = 0;
    const auto load = [&](int64_t mine) {
      x = mine >= 0 ? states[mine].x : 0.0;
      decay = mine >= 0 ? states[mine].decay : 0.0;
    };
    int64_t mine = count_tiles(row) - 1 - lane;
    load(mine);
    for (; mine + lane >= 0; mine -= kWarp) {
      const double sum = x, power = decay;
      load(mine - kWarp);
      double after = 0;
#pragma unroll
      for (int k = 0; k < kWarp; ++k) {
        if (k == lane) after = carried;
        carried = __shfl_sync(kAllLanes, sum, k) + __shfl_sync(kAllLanes, power, k) * carried;
      }
      if (mine >= 0) states[mine].x = after;
    }
  }
}

// Computes advantages and returns or, if `measured` is set, how to whiten the advantages.
template <class F, bool measured>
__global__ void __launch_bounds__(kThreads, kRecurrenceBlocks)
    tile_kernel(const AdvantagePass pass, const F f) {
  constexpr Reuse reuse = measured ? Reuse::kLater : Reuse::kNever;
  const int lane = threadIdx.x % kWarp;
  const DecayPowers uniform(f.decay, lane);
  RecurrenceOutput<F, measured> output(pass, f);
  for_tiles(pass, [&](const RowRange& row, int64_t at, int64_t index) {
    const TileState state = pass.tiles[index];
    RecurrenceQuad quad = load_tile<F, false, reuse>(pass, row, at);
    reward_last(pass, row, state.rewarded, &quad);
    const ScannedTile<F> tile(f, quad, lane, uniform, state.next_value);
    const double baseline = F::traits.reads_baseline ? pass.baselines[row.row] : 0.0;
    output.leave(quad, tile.terms, x_after_lane(tile.suffix, tile.powers, lane, state.x), baseline);
  });
  output.end();
}

}  // namespace policy_loss::cuda

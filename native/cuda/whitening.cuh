// Finds the mean and the deviation with which advantages are whitened.
#pragma once

#include "cuda/warp.cuh"

namespace policy_loss::cuda {

// Combines the spreads of a block's threads: counts, means and squared deviations. Only thread 0 gets the
// result.
__device__ __forceinline__ Spread block_spread(Spread mine) {
  __shared__ Spread of_warp[kWarps];
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    mine.add({__shfl_down_sync(kAllLanes, mine.count, distance),
              __shfl_down_sync(kAllLanes, mine.mean, distance),
              __shfl_down_sync(kAllLanes, mine.squares, distance)});
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = mine;
  __syncthreads();
  Spread all;
  for (int warp = 0; warp < kWarps; ++warp) all.add(of_warp[warp]);
  return all;
}

// Combines the spreads of all threads of the grid in a fixed order. Stores how the
// advantages are whitened. `tokens` is the argument of Spread::whitening().
__device__ __forceinline__ void find_whitening(const AdvantagePass& pass, const Spread& mine, double tokens) {
  const Spread of_block = block_spread(mine);
  if (threadIdx.x == 0) pass.spreads[blockIdx.x] = of_block;
  if (!is_last_block(&pass.state->ticket)) return;
  Spread several;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += kThreads) {
    const Spread& spread = pass.spreads[block];
    several.add({__ldcg(&spread.count), __ldcg(&spread.mean), __ldcg(&spread.squares)});
  }
  const Spread all = block_spread(several);
  if (threadIdx.x != 0) return;
  pass.state->whitening = all.whitening(tokens);
}

}  // namespace policy_loss::cuda

// Divides the tiles of a batch among the warps of a grid. A tile (pass.h) is live if it has an unmasked
// token, and dead otherwise.
//
// Padding gathers in some places: at the ends of rows, or in the second half of a batch whose rows are sorted
// by length. Equal numbers of tiles would therefore leave some warps almost without work. Instead, all warps
// get equally many live tiles, and equally many dead tiles, for which they only store gradients of 0. The
// numbers of two warps, and also those of two blocks, differ by at most one tile. Which tiles a warp gets
// follows from the mask and from the size of the grid, so sums over them have the same bits on every run.
#pragma once

#include "cuda/warp.cuh"

namespace policy_loss::cuda {

enum class TileKind { kLive, kDead };

// Sets live_before in each of the states. All threads of one block must call it.
__device__ __forceinline__ void number_live_tiles(ChunkState* states, int64_t chunks) {
  __shared__ int64_t of_warp[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t per_thread = (chunks + kThreads - 1) / kThreads;
  const int64_t first = min(threadIdx.x * per_thread, chunks);
  const int64_t last = min(first + per_thread, chunks);
  int64_t mine = 0;
#pragma unroll 8
  for (int64_t chunk = first; chunk < last; ++chunk) mine += __popc(__ldcg(&states[chunk].live_tiles));
  int64_t until = mine;  // the tiles of this lane and the lanes before it
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int64_t other = __shfl_up_sync(kAllLanes, until, distance);
    if (lane >= distance) until += other;
  }
  if (lane == kWarp - 1) of_warp[warp] = until;
  __syncthreads();
  int64_t before = until - mine;
  for (int other = 0; other < warp; ++other) before += of_warp[other];
#pragma unroll 8
  for (int64_t chunk = first; chunk < last; ++chunk) {
    states[chunk].live_before = before;
    before += __popc(__ldcg(&states[chunk].live_tiles));
  }
}

// The tiles of one kind in a chunk.
struct TilesOfChunk {
  int64_t before;  // the number of tiles of the kind in all chunks before
  unsigned tiles;  // bit k: tile k of the chunk is of the kind
};

template <TileKind kind>
__device__ __forceinline__ TilesOfChunk tiles_of(const ChunkedBatch& pass, const ChunkState* states,
                                                 int64_t chunk) {
  const int64_t before = states[chunk].live_before;
  const unsigned live = states[chunk].live_tiles;
  if (kind == TileKind::kLive) return {before, live};
  const int64_t tokens = min(pass.chunk_tokens, pass.tokens - chunk * pass.chunk_tokens);
  const int count = static_cast<int>((tokens + kFeedTile - 1) / kFeedTile);
  return {chunk * (pass.chunk_tokens / kFeedTile) - before, ~live & (~0u >> (32 - count))};
}

// Returns the last chunk before which there are at most `number` tiles of a kind. The lanes of a warp search
// together.
template <TileKind kind>
__device__ __forceinline__ int64_t find_chunk(const ChunkedBatch& pass, const ChunkState* states,
                                              int64_t number) {
  int64_t low = 0, high = pass.chunks;
  while (high - low > 1) {
    const int64_t stride = (high - low + kWarp - 1) / kWarp;
    const int64_t probe = low + threadIdx.x % kWarp * stride;
    const bool is_low = probe < high && tiles_of<kind>(pass, states, probe).before <= number;
    low += (__popc(__ballot_sync(kAllLanes, is_low)) - 1) * stride;
    high = min(high, low + stride);
  }
  return low;
}

// Calls visit(chunk, tiles) for each chunk with tiles that this warp gets. Bit k of `tiles` is set if the
// warp gets tile k of the chunk. All threads of the block must call this together, once for each kind.
template <TileKind kind, class Visit>
__device__ __forceinline__ void for_tiles_of_warp(const ChunkedBatch& pass, const ChunkState* states,
                                                  Visit visit) {
  if (pass.chunks == 0) return;
  // Warp w of the block gets the tiles [bounds[w], bounds[w + 1]), in the order of the batch's tiles of the
  // kind.
  __shared__ int64_t bounds[kWarps + 1];
  if (threadIdx.x <= kWarps) {
    const TilesOfChunk last = tiles_of<kind>(pass, states, pass.chunks - 1);
    const int64_t all = last.before + __popc(last.tiles);
    bounds[threadIdx.x] = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x) * all / all_warps();
  }
  __syncthreads();
  const int64_t* const mine = bounds + threadIdx.x / kWarp;
  if (mine[0] == mine[1]) return;
  for (int64_t chunk = find_chunk<kind>(pass, states, mine[0]); chunk < pass.chunks; ++chunk) {
    const TilesOfChunk of_chunk = tiles_of<kind>(pass, states, chunk);
    if (of_chunk.before >= mine[1]) break;
    const unsigned lane = threadIdx.x % kWarp;
    const int64_t number = of_chunk.before + __popc(of_chunk.tiles & ((1u << lane) - 1u));
    const bool is_mine = (of_chunk.tiles >> lane & 1) != 0 && number >= mine[0] && number < mine[1];
    const unsigned tiles = __ballot_sync(kAllLanes, is_mine);
    if (tiles != 0) visit(chunk, tiles);
  }
}

}  // namespace policy_loss::cuda

// Tests how the tiles of a batch are divided among the warps of a grid (native/cuda/live_tiles.cuh): each
// tile belongs to one warp, and all warps get equally many live tiles, and equally many dead ones.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/live_tiles.cuh"
#include "test/native/kernels/test.h"

namespace policy_loss::cuda {
namespace {

__global__ void numbers_live_tiles(ChunkState* states, int64_t chunks) {
  number_live_tiles(states, chunks);
}

// Adds 1 plus the number of the warp to the owner of each tile that the warp gets. Tile k of a chunk is
// number kMaxTiles·chunk + k.
constexpr int kMaxTiles = kMaxChunk / kFeedTile;
template <TileKind kind>
__global__ void notes_owners(const ChunkedBatch batch, const ChunkState* states, unsigned* owners) {
  for_tiles_of_warp<kind>(batch, states, [&](int64_t chunk, unsigned tiles) {
    if (threadIdx.x % kWarp != 0) return;
    for (int k = 0; k < kMaxTiles; ++k)
      if ((tiles >> k & 1) != 0)
        atomicAdd(owners + chunk * kMaxTiles + k, static_cast<unsigned>(first_warp()) + 1);
  });
}

// An array in device memory.
template <class T>
class Array {
 public:
  Array(const std::vector<T>& values, cudaStream_t stream) : size_(values.size()), stream_(stream) {
    cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(size_, 1) * sizeof(T));
    cudaMemcpyAsync(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice, stream_);
    cudaStreamSynchronize(stream_);
  }
  Array(const Array&) = delete;
  ~Array() { cudaFree(data_); }
  T* data() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> found(size_);
    cudaMemcpyAsync(found.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost, stream_);
    cudaStreamSynchronize(stream_);
    return found;
  }

 private:
  size_t size_;
  cudaStream_t stream_;
  T* data_ = nullptr;
};

}  // namespace
}  // namespace policy_loss::cuda

namespace kernels_test {
namespace {

using namespace policy_loss::cuda;

// A batch with chunks of `tiles_of_chunk` tiles. The density is the share of the tiles that are live, in the
// first half of the chunks and in the second half.
struct Tiles {
  std::string name;
  int64_t tokens;
  int tiles_of_chunk;
  double density[2];
};

ChunkedBatch batch_of(const Tiles& of) {
  ChunkedBatch batch{};
  batch.tokens = of.tokens;
  batch.chunk_tokens = of.tiles_of_chunk * kFeedTile;
  batch.chunks = (batch.tokens + batch.chunk_tokens - 1) / batch.chunk_tokens;
  return batch;
}

// Returns whether a tile exists. The last chunk may have fewer than the others.
bool exists(const ChunkedBatch& batch, int64_t chunk, int k) {
  return k * kFeedTile < std::min(batch.chunk_tokens, batch.tokens - chunk * batch.chunk_tokens);
}

std::vector<ChunkState> draw_states(const Tiles& of, const ChunkedBatch& batch, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<ChunkState> states(batch.chunks);
  for (int64_t chunk = 0; chunk < batch.chunks; ++chunk) {
    std::bernoulli_distribution is_live(of.density[2 * chunk < batch.chunks ? 0 : 1]);
    for (int k = 0; k < of.tiles_of_chunk; ++k)
      if (exists(batch, chunk, k) && is_live(random)) states[chunk].live_tiles |= 1u << k;
  }
  return states;
}

// Checks the owners of the tiles of one kind, which must be in ascending order. `workers` is the number of
// warps, or of blocks; `of_worker` the number of warps per worker.
void check_counts(const std::vector<unsigned>& owners, int64_t workers, int of_worker,
                  const std::string& what) {
  std::vector<int64_t> counts(workers);
  for (const unsigned owner : owners) ++counts[(owner - 1) / of_worker];
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  expect(*most - *least <= 1,
         what + ": from " + std::to_string(*least) + " to " + std::to_string(*most) + " tiles");
}

void test_shares_of(const Tiles& of, unsigned blocks, unsigned seed, cudaStream_t stream) {
  const std::string what = of.name + ", " + std::to_string(blocks) + " blocks";
  const ChunkedBatch batch = batch_of(of);
  const Array<ChunkState> states(draw_states(of, batch, seed), stream);
  const Array<unsigned> owners(std::vector<unsigned>(batch.chunks * kMaxTiles), stream);
  launch("numbers_live_tiles", numbers_live_tiles, {1, stream}, states.data(), batch.chunks);
  launch("notes_owners", notes_owners<TileKind::kLive>, {blocks, stream}, batch, states.data(),
         owners.data());
  launch("notes_owners", notes_owners<TileKind::kDead>, {blocks, stream}, batch, states.data(),
         owners.data());
  const std::vector<ChunkState> numbered = states.values();
  const std::vector<unsigned> found = owners.values();
  std::vector<unsigned> of_kind[2];
  int64_t live = 0;
  bool orderly = true;
  for (int64_t chunk = 0; chunk < batch.chunks; ++chunk) {
    orderly = orderly && numbered[chunk].live_before == live;
    for (int k = 0; k < kMaxTiles; ++k) {
      const unsigned owner = found[chunk * kMaxTiles + k];
      const bool is_live = (numbered[chunk].live_tiles >> k & 1) != 0;
      live += is_live ? 1 : 0;
      if (exists(batch, chunk, k))
        of_kind[is_live].push_back(owner);
      else
        orderly = orderly && owner == 0;
    }
  }
  expect(orderly, what + ": the numbers of the tiles");
  for (const std::vector<unsigned>& some : of_kind) {
    const bool is_whole = some.empty() || (some.front() >= 1 && some.back() <= blocks * kWarps);
    expect(is_whole && std::is_sorted(some.begin(), some.end()), what + ": each tile has one owner");
    if (!is_whole) continue;
    check_counts(some, static_cast<int64_t>(blocks) * kWarps, 1, what + ", warps");
    check_counts(some, blocks, kWarps, what + ", blocks");
  }
}

void test_shares() {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  unsigned seed = 0;
  for (const Tiles& of : std::vector<Tiles>{{"no tiles", 0, 1, {0, 0}},
                                            {"one live tile", 100, 32, {1, 1}},
                                            {"one dead tile", 100, 1, {0, 0}},
                                            {"chunks of one tile", 60'000, 1, {0.5, 0.5}},
                                            {"all live", 1'000'000, 19, {1, 1}},
                                            {"all dead", 1'000'000, 19, {0, 0}},
                                            {"a half of dead tiles", 3'000'000, 32, {1, 0.1}},
                                            {"live tiles at the end", 3'000'001, 7, {0, 0.01}},
                                            {"very many chunks", 3'000'000, 3, {0.9, 0.05}}})
    for (const unsigned blocks : {1u, 2u, 7u, 33u})
      shuffled(static_cast<int>(++seed), [&] {
        test_shares_of(of, blocks, seed, stream);
        return 0;
      });
  cudaStreamDestroy(stream);
}

}  // namespace

std::vector<Piece> share_pieces() {
  return {{"shares of tiles", test_shares}};
}

}  // namespace kernels_test

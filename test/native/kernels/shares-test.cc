// Tests how the steps of a batch are divided among the warps of a grid (native/cuda/shares.cuh): each step
// belongs to one warp, and all warps get equally many live steps, and equally many dead ones.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/shares.cuh"
#include "test/native/kernels/test.h"

namespace policy_loss::cuda {
namespace {

__global__ void numbers_live_steps(SpanState* states, int64_t spans) {
  number_live_steps(states, spans);
}

// Adds 1 plus the number of the warp to the owner of each step that the warp gets. Step k of a span is number
// kMaxSteps·span + k.
constexpr int kMaxSteps = kMaxSpan / kSpanStep;
template <StepKind kind>
__global__ void notes_owners(const SpannedBatch batch, const SpanState* states, unsigned* owners) {
  for_share<kind>(batch, states, [&](int64_t span, unsigned steps) {
    if (threadIdx.x % kWarp != 0) return;
    for (int k = 0; k < kMaxSteps; ++k)
      if ((steps >> k & 1) != 0)
        atomicAdd(owners + span * kMaxSteps + k, static_cast<unsigned>(first_warp()) + 1);
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

// A batch with spans of `steps_of_span` steps. The density is the part of the steps that are live, in the
// first half of the spans and in the second half.
struct Steps {
  std::string name;
  int64_t tokens;
  int steps_of_span;
  double density[2];
};

SpannedBatch batch_of(const Steps& of) {
  SpannedBatch batch{};
  batch.tokens = of.tokens;
  batch.span = of.steps_of_span * kSpanStep;
  batch.spans = (batch.tokens + batch.span - 1) / batch.span;
  return batch;
}

// Returns whether a step exists. The last span may have fewer than the others.
bool exists(const SpannedBatch& batch, int64_t span, int k) {
  return k * kSpanStep < std::min(batch.span, batch.tokens - span * batch.span);
}

std::vector<SpanState> draw_states(const Steps& of, const SpannedBatch& batch, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<SpanState> states(batch.spans);
  for (int64_t span = 0; span < batch.spans; ++span) {
    std::bernoulli_distribution is_live(of.density[2 * span < batch.spans ? 0 : 1]);
    for (int k = 0; k < of.steps_of_span; ++k)
      if (exists(batch, span, k) && is_live(random)) states[span].live_steps |= 1u << k;
  }
  return states;
}

// Checks the owners of the steps of one kind, which must be in ascending order. `workers` is the number of
// warps, or of blocks; `of_worker` the number of warps per worker.
void check_counts(const std::vector<unsigned>& owners, int64_t workers, int of_worker,
                  const std::string& what) {
  std::vector<int64_t> counts(workers);
  for (const unsigned owner : owners) ++counts[(owner - 1) / of_worker];
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  expect(*most - *least <= 1,
         what + ": from " + std::to_string(*least) + " to " + std::to_string(*most) + " steps");
}

void test_shares_of(const Steps& of, unsigned blocks, unsigned seed, cudaStream_t stream) {
  const std::string what = of.name + ", " + std::to_string(blocks) + " blocks";
  const SpannedBatch batch = batch_of(of);
  const Array<SpanState> states(draw_states(of, batch, seed), stream);
  const Array<unsigned> owners(std::vector<unsigned>(batch.spans * kMaxSteps), stream);
  launch("numbers_live_steps", numbers_live_steps, {1, stream}, states.data(), batch.spans);
  launch("notes_owners", notes_owners<StepKind::kLive>, {blocks, stream}, batch, states.data(),
         owners.data());
  launch("notes_owners", notes_owners<StepKind::kDead>, {blocks, stream}, batch, states.data(),
         owners.data());
  const std::vector<SpanState> numbered = states.values();
  const std::vector<unsigned> found = owners.values();
  std::vector<unsigned> of_kind[2];
  int64_t live = 0;
  bool orderly = true;
  for (int64_t span = 0; span < batch.spans; ++span) {
    orderly = orderly && numbered[span].live_before == live;
    for (int k = 0; k < kMaxSteps; ++k) {
      const unsigned owner = found[span * kMaxSteps + k];
      const bool is_live = (numbered[span].live_steps >> k & 1) != 0;
      live += is_live ? 1 : 0;
      if (exists(batch, span, k))
        of_kind[is_live].push_back(owner);
      else
        orderly = orderly && owner == 0;
    }
  }
  expect(orderly, what + ": the numbers of the steps");
  for (const std::vector<unsigned>& some : of_kind) {
    const bool is_whole = some.empty() || (some.front() >= 1 && some.back() <= blocks * kWarps);
    expect(is_whole && std::is_sorted(some.begin(), some.end()), what + ": each step has one owner");
    if (!is_whole) continue;
    check_counts(some, static_cast<int64_t>(blocks) * kWarps, 1, what + ", warps");
    check_counts(some, blocks, kWarps, what + ", blocks");
  }
}

void test_shares() {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  unsigned seed = 0;
  for (const Steps& of : std::vector<Steps>{{"no steps", 0, 1, {0, 0}},
                                            {"one live step", 100, 32, {1, 1}},
                                            {"one dead step", 100, 1, {0, 0}},
                                            {"spans of one step", 60'000, 1, {0.5, 0.5}},
                                            {"all live", 1'000'000, 19, {1, 1}},
                                            {"all dead", 1'000'000, 19, {0, 0}},
                                            {"a half of dead steps", 3'000'000, 32, {1, 0.1}},
                                            {"live steps at the end", 3'000'001, 7, {0, 0.01}},
                                            {"very many spans", 3'000'000, 3, {0.9, 0.05}}})
    for (const unsigned blocks : {1u, 2u, 7u, 33u})
      shuffled(static_cast<int>(++seed), [&] {
        test_shares_of(of, blocks, seed, stream);
        return 0;
      });
  cudaStreamDestroy(stream);
}

}  // namespace

std::vector<Piece> share_pieces() {
  return {{"shares of steps", test_shares}};
}

}  // namespace kernels_test

// Kernels that copy in bulk and make one mistake each (broken-kernels.h).
#include "cuda/bulk_copies.cuh"
#include "test/native/kernels/broken-kernels.h"
#include "test/native/kernels/machine.h"

namespace policy_loss::cuda {
namespace {

enum class Mistake {
  kNone,
  kNoWait,
  kReadsBeforeWait,
  kNoSync,
  kNoFence,
  kWrongParity,
  kWaitsTwice,
  kOtherSize,
  kNoCopy,
  kNoBarrier,
  kMisalignedSource,
  kMisalignedPlace,
  kOddSize,
  kPastTheColumn,
};

constexpr int kTurns = 3;
constexpr int kBytes = kWarp * sizeof(float);
constexpr int kHeadBytes = 16;  // the barrier

// Copies the first 32 numbers of the column to shared memory several times. If a lane finds something else
// there, it writes before the column.
template <Mistake mistake>
__global__ void copies_in_bulk(Column column) {
  const auto makes = [](Mistake other) { return mistake == other; };
  if (threadIdx.x >= kWarp) return;
  __stcs(column.data + threadIdx.x, 1.0f);
  __syncwarp();
  float* const room = reinterpret_cast<float*>(emulation::launch_memory() + kHeadBytes);
  const SharedAddress barrier = shared_address(emulation::launch_memory());
  if (is_chosen_lane() && !makes(Mistake::kNoBarrier)) make_barrier(barrier);
  __syncwarp();
  for (int turn = 0; turn < kTurns; ++turn) {
    if (is_chosen_lane()) {
      const int bytes = kBytes + (makes(Mistake::kOddSize) ? 4 : 0);
      const int from = makes(Mistake::kMisalignedSource) ? 1 : makes(Mistake::kPastTheColumn) ? 96 : 0;
      if (!makes(Mistake::kNoFence) || turn == 0) fence_before_copies();
      announce_bytes(barrier, bytes + (makes(Mistake::kOtherSize) ? 16 : 0));
      if (!makes(Mistake::kNoCopy))
        start_bulk_copy(
            shared_address(reinterpret_cast<char*>(room + (makes(Mistake::kMisalignedPlace) ? 1 : 0))),
            column.data + from, bytes, barrier);
    }
    const bool reads_early = makes(Mistake::kReadsBeforeWait);
    const float early = reads_early ? room[threadIdx.x] : 1.0f;
    const unsigned parity = makes(Mistake::kWrongParity) ? (turn + 1) % 2 : turn % 2;
    if (!makes(Mistake::kNoWait)) wait_for_phase(barrier, parity);
    if (makes(Mistake::kWaitsTwice)) wait_for_phase(barrier, 1 - parity);
    if (early != 1.0f || room[threadIdx.x ^ 1] != 1.0f) __stcs(column.data - 1, 0.0f);
    if (!makes(Mistake::kNoSync)) __syncwarp();
  }
}

template <Mistake mistake>
std::string run_copies() {
  Machine machine;
  launch("kernel", copies_in_bulk<mistake>, {1, machine.stream, kHeadBytes + 2 * kBytes}, machine.column);
  return machine.finish();
}

}  // namespace
}  // namespace policy_loss::cuda

const std::vector<BrokenKernel>& broken_copies() {
  using namespace policy_loss::cuda;
  static const std::vector<BrokenKernel> all = {
      {"bulk copies", "", run_copies<Mistake::kNone>},
      {"a bulk copy that no lane waits for", "out of bounds", run_copies<Mistake::kNoWait>},
      {"a bulk copy that lanes read before they wait", "out of bounds",
       run_copies<Mistake::kReadsBeforeWait>},
      {"a place that is reused while lanes still read it", "before all lanes", run_copies<Mistake::kNoSync>},
      {"a place that is reused without a fence", "without a fence", run_copies<Mistake::kNoFence>},
      {"a wait for the wrong parity", "wrong phase", run_copies<Mistake::kWrongParity>},
      {"a wait for a phase that does not begin", "never ends", run_copies<Mistake::kWaitsTwice>},
      {"a phase that gets fewer bytes than announced", "a phase of 144 bytes gets 128",
       run_copies<Mistake::kOtherSize>},
      {"a phase that gets no bytes", "a phase of 128 bytes gets 0", run_copies<Mistake::kNoCopy>},
      {"a barrier that was not made", "there is no barrier", run_copies<Mistake::kNoBarrier>},
      {"a bulk copy from a misaligned address", "misaligned", run_copies<Mistake::kMisalignedSource>},
      {"a bulk copy to a misaligned address", "misaligned", run_copies<Mistake::kMisalignedPlace>},
      {"a bulk copy of 132 bytes", "a bulk copy of 132 bytes", run_copies<Mistake::kOddSize>},
      {"a bulk copy past the column", "out of bounds", run_copies<Mistake::kPastTheColumn>},
  };
  return all;
}

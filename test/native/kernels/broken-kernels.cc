#include "test/native/kernels/broken-kernels.h"

#include <cuda_pipeline_primitives.h>

#include <cmath>

#include "cuda/warp.cuh"
#include "test/native/kernels/machine.h"

namespace policy_loss::cuda {
namespace {

__global__ void sound(Column column) {
  double x[1] = {1.0};
  const double sum = block_sum(x);
  if (threadIdx.x == 0) __stcs(column.data, static_cast<float>(sum));
}

__global__ void barrier_for_some(Column) {
  if (threadIdx.x < 100) __syncthreads();
}

__global__ void two_barriers(Column) {
  if (threadIdx.x % 2 == 0)
    __syncthreads();
  else
    __syncthreads();
}

__global__ void shuffle_after_some_have_left(Column column) {
  if (threadIdx.x == 7) return;
  const float sum = warp_sum(1.0f);
  if (threadIdx.x == 0) __stcs(column.data, sum);
}

__global__ void barrier_against_shuffle(Column) {
  if (threadIdx.x % kWarp == 0)
    __syncthreads();
  else
    warp_sum(1.0f);
}

__global__ void shuffle_without_oneself(Column) {
  __shfl_down_sync(0xffffu, 1.0f, 1);
}

__global__ void reads_past_the_column(Column column) {
  __ldcs(column.data + kColumnLength);
}

__global__ void writes_before_the_column(Column column) {
  if (threadIdx.x == 0) __stcs(column.data - 1, 0.0f);
}

__global__ void writes_past_the_column_unchecked(Column column) {
  if (threadIdx.x == 0) column.data[kColumnLength] = 0.0f;
}

__global__ void misaligned(Column column) {
  __ldcs(reinterpret_cast<const float4*>(column.data + 1));
}

__global__ void marks(Column column) {
  if (threadIdx.x == 0) __stcs(column.data, 1.0f);
}

__global__ void expects_mark(Column column) {
  if (threadIdx.x == 0 && !(__ldcs(column.data) == 1.0f)) __stcs(column.data - 1, 0.0f);
}

// Every thread copies a number of the column into shared memory, and then reads the number that its neighbour
// copied. This is correct only if the thread waits for its own copies (`waits`) and then for the other
// threads of its warp (`with_others`).
template <bool waits, bool with_others>
__global__ void reads_a_neighbours_copy(Column column) {
  __shared__ float room[kThreads];
  __stcs(column.data + threadIdx.x % kWarp, 1.0f);
  room[threadIdx.x] = 0.0f;
  __syncwarp();
  __pipeline_memcpy_async(room + threadIdx.x, column.data + threadIdx.x % kWarp, sizeof(float));
  __pipeline_commit();
  if (waits) __pipeline_wait_prior(0);
  if (with_others) __syncwarp();
  if (room[threadIdx.x ^ 1] != 1.0f) __stcs(column.data - 1, 0.0f);
  __pipeline_wait_prior(0);
}

template <bool with_event>
std::string run_on_two_streams() {
  Machine machine;
  launch("marks", marks, {1, machine.other}, machine.column);
  if (with_event) {
    cudaEvent_t event;
    cudaEventCreateWithFlags(&event, 0);
    cudaEventRecord(event, machine.other);
    cudaStreamWaitEvent(machine.stream, event, 0);
  }
  launch("expects_mark", expects_mark, {1, machine.stream}, machine.column);
  const std::string found = machine.finish();
  cudaStreamSynchronize(machine.other);
  return found;
}

}  // namespace
}  // namespace policy_loss::cuda

const std::vector<BrokenKernel>& broken_kernels() {
  using namespace policy_loss::cuda;
  static const std::vector<BrokenKernel> all = {
      {"a sound kernel", "", run<sound>},
      {"a barrier that some threads do not reach", "divergence", run<barrier_for_some>},
      {"two barriers, half of the threads at each", "divergence", run<two_barriers>},
      {"a shuffle after a lane has ended", "divergence", run<shuffle_after_some_have_left>},
      {"a shuffle while a lane is at a barrier", "divergence", run<barrier_against_shuffle>},
      {"a shuffle whose mask leaves a lane out", "mask", run<shuffle_without_oneself>},
      {"a load past a column", "out of bounds", run<reads_past_the_column>},
      {"a store before a column", "out of bounds", run<writes_before_the_column>},
      {"an unchecked store past a column", "out of bounds", run<writes_past_the_column_unchecked>, true},
      {"a misaligned load", "misaligned", run<misaligned>},
      {"copies that every lane waits for", "", run<reads_a_neighbours_copy<true, true>>},
      {"a copy that nobody waits for", "out of bounds", run<reads_a_neighbours_copy<false, true>>},
      {"a copy that a lane reads before the other has waited", "out of bounds",
       run<reads_a_neighbours_copy<true, false>>},
      {"a stream that does not wait for the other", "out of bounds", run_on_two_streams<false>},
      {"a stream that waits for the other", "", run_on_two_streams<true>},
  };
  return all;
}

// Mistakes of host code, and mistakes of kernels that show only if blocks run at the same time. See
// broken-kernels.h.
#include <cmath>
#include <cstdlib>
#include <vector>

#include "test/native/kernels/broken-kernels.h"
#include "test/native/kernels/machine.h"

namespace policy_loss::cuda {
namespace {

constexpr unsigned kBlocks = 6;
// The points at which blocks take turns depend on what the process launched before. Few turns miss a fault
// now and then.
constexpr int kTurns = 200;
constexpr const char* kWrong = "a wrong result";

// Sets an environment variable of the emulation for the lifetime of this object.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  Setting(const Setting&) = delete;
  ~Setting() { unsetenv(name_); }

 private:
  const char* name_;
};

__global__ void clears(Column column) {
  if (threadIdx.x < kColumnLength) __stcs(column.data + threadIdx.x, 0.0f);
}

// What the kernels of run_blocks() work on: the result, a ticket and a number for each block, all 0.
struct Blocks {
  float* const result;
  unsigned* const ticket;
  float* const numbers;
  __device__ explicit Blocks(Column column)
      : result(column.data), ticket(reinterpret_cast<unsigned*>(column.data + 1)), numbers(column.data + 2) {}
};

enum class Fence { kNone, kBeforeStore, kBeforeTicket, kAfterTicket };
enum class Reads { kAfterFence, kWithoutFence, kPastCache };

// Each block stores a number, and the block that takes the last ticket adds them up.
template <Fence fence, Reads reads>
__global__ void sums_blocks(Column column) {
  if (threadIdx.x != 0) return;
  const Blocks blocks(column);
  if (fence == Fence::kBeforeStore) __threadfence();
  blocks.numbers[blockIdx.x] = 1.0f;
  if (fence == Fence::kBeforeTicket) __threadfence();
  const bool is_last = atomicAdd(blocks.ticket, 1u) == gridDim.x - 1;
  if (fence == Fence::kAfterTicket) __threadfence();
  if (!is_last) return;
  if (reads == Reads::kAfterFence) __threadfence();
  float sum = 0;
  for (unsigned block = 0; block < gridDim.x; ++block)
    sum += reads == Reads::kPastCache ? __ldcg(blocks.numbers + block) : blocks.numbers[block];
  *blocks.result = sum;
}

// As above, but the number of a block is the sum of what its threads stored. The first thread takes the
// block's ticket, and must wait until the others have stored.
template <bool barrier>
__global__ void sums_threads_of_blocks(Column column) {
  constexpr unsigned of_block = 8;
  const Blocks blocks(column);
  if (threadIdx.x < of_block) blocks.numbers[blockIdx.x * of_block + threadIdx.x] = 1.0f / of_block;
  __threadfence();
  if (barrier) __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(blocks.ticket, 1u) != gridDim.x - 1) return;
  __threadfence();
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x * of_block; ++i) sum += blocks.numbers[i];
  *blocks.result = sum;
}

// The ticket is not atomic, though fences surround it.
__global__ void takes_tickets_without_atomics(Column column) {
  if (threadIdx.x != 0) return;
  const Blocks blocks(column);
  blocks.numbers[blockIdx.x] = 1.0f;
  __threadfence();
  const unsigned ticket = (*blocks.ticket)++;
  __threadfence();
  if (ticket != gridDim.x - 1) return;
  for (unsigned block = 0; block < gridDim.x; ++block) *blocks.result += blocks.numbers[block];
}

// Each block adds 1 to the number that the block before it has stored, as if that had ended.
__global__ void continues_the_block_before(Column column) {
  if (threadIdx.x != 0) return;
  const Blocks blocks(column);
  __threadfence();
  const float before = blockIdx.x == 0 ? 0.0f : blocks.numbers[blockIdx.x - 1];
  blocks.numbers[blockIdx.x] = before + 1.0f;
  __threadfence();
  if (blockIdx.x == gridDim.x - 1) *blocks.result = blocks.numbers[blockIdx.x];
}

// The first block sets the result, to which the others add.
__global__ void sets_the_sum_in_the_first_block(Column column) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) *column.data = 1.0f;
  __threadfence();
  if (blockIdx.x != 0) atomicAdd(column.data, 1.0f);
}

// Each block counts how many of the blocks' numbers are still 0, and then sets its own. All must find all.
__global__ void overwrites_what_others_read(Column column) {
  if (threadIdx.x != 0) return;
  const Blocks blocks(column);
  unsigned zeros = 0;
  __threadfence();
  for (unsigned block = 0; block < gridDim.x; ++block) zeros += blocks.numbers[block] == 0.0f ? 1 : 0;
  blocks.numbers[blockIdx.x] = 1.0f;
  if (zeros == gridDim.x) atomicAdd(column.data, 1.0f);
}

// The largest number of a block becomes the result.
template <bool atomic>
__global__ void finds_the_largest(Column column) {
  if (threadIdx.x != 0) return;
  const float mine = static_cast<float>(blockIdx.x + 1);
  if (atomic) {
    atomicMax(column.data, mine);
    return;
  }
  __threadfence();
  if (*column.data < mine) *column.data = mine;
  __threadfence();
}

template <bool atomic>
__global__ void counts_blocks(Column column) {
  if (threadIdx.x != 0) return;
  if (atomic)
    atomicAdd(column.data, 1.0f);
  else
    column.data[0] += 1.0f;
}

__global__ void writes_past_shared_memory(Column) {
  if (threadIdx.x == 0) emulation::launch_memory()[64] = 1;
}

__global__ void writes_before_the_column_unchecked(Column column) {
  if (threadIdx.x == 0) column.data[-1] = 0.0f;
}

#if ADDRESS_SANITIZER
__global__ void reads_past_the_column_unchecked(Column column) {
  if (threadIdx.x == 0) column.data[0] = column.data[kColumnLength];
}
#endif

struct alignas(32) Wide {
  float of[8];
};
__global__ void loads_32_bytes(Column column) {
  if (threadIdx.x == 0) __ldcs(reinterpret_cast<const Wide*>(column.data));
}

// Returns the first number of the column, after the work on its stream.
float first_number(Machine& machine) {
  float number = NAN;
  cudaMemcpyAsync(&number, machine.column.data, sizeof number, cudaMemcpyDeviceToHost, machine.stream);
  cudaStreamSynchronize(machine.stream);
  return number;
}

// How the blocks of a grid run: one after another, with stores that become visible late, or several at the
// same time.
enum class Run { kLateStores, kAtOnce };

// Launches a kernel that must set the first number of the column to the number of blocks.
template <void (*kernel)(Column)>
bool is_right() {
  Machine machine;
  launch("clears", clears, {1, machine.stream}, machine.column);
  launch("kernel", kernel, {kBlocks, machine.stream}, machine.column);
  return first_number(machine) == static_cast<float>(kBlocks) && machine.finish().empty();
}

template <void (*kernel)(Column), Run run>
std::string run_blocks() {
  const Setting residents("POLICY_LOSS_EMULATION_RESIDENT", run == Run::kAtOnce ? "4" : "1");
  if (run == Run::kLateStores) return is_right<kernel>() ? "" : kWrong;
  for (int turn = 0; turn < kTurns; ++turn)  // blocks take turns at other points each time
    if (!is_right<kernel>()) return kWrong;
  return "";
}

template <void (*kernel)(Column)>
std::string run_with_shared_memory() {
  Machine machine;
  launch("kernel", kernel, {1, machine.stream, 64}, machine.column);
  return machine.finish();
}

std::string copies_past_the_column() {
  Machine machine;
  const std::vector<float> from(kColumnLength + 1);
  cudaMemcpyAsync(machine.column.data, from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice,
                  machine.stream);
  return machine.finish();
}

template <bool waits>
std::string frees_under_a_copy() {
  Machine machine;
  void* memory = nullptr;
  cudaMalloc(&memory, 64);
  const char from[64] = {};
  cudaMemcpyAsync(memory, from, sizeof from, cudaMemcpyHostToDevice, machine.stream);
  if (waits) cudaStreamSynchronize(machine.stream);
  cudaFree(memory);
  return machine.finish();
}

// Copies numbers from the device until a copy was not ready when the host asked. Host code that does not look
// at the answer then reads a number that has not arrived.
template <bool looks, bool clears_error>
std::string asks_whether_ready() {
  const Setting shuffle("POLICY_LOSS_EMULATION_SHUFFLE", "5");
  Machine machine;
  launch("marks", clears, {1, machine.stream}, machine.column);
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, 0);
  std::string found;
  for (int turn = 0; turn < 40 && found.empty(); ++turn) {
    float number = NAN;
    cudaMemcpyAsync(&number, machine.column.data, sizeof number, cudaMemcpyDeviceToHost, machine.stream);
    cudaEventRecord(event, machine.stream);
    while (cudaEventQuery(event) == cudaErrorNotReady && looks)
      if (clears_error) cudaGetLastError();
    if (std::isnan(number)) found = kWrong;
    cudaStreamSynchronize(machine.stream);
    if (looks && cudaGetLastError() != cudaSuccess) found = "an error is left behind";
  }
  cudaEventDestroy(event);
  cudaGetLastError();
  machine.finish();
  return found;
}

// Launches two kernels, the first of which does not start. The second one reads what the first one would have
// written.
template <bool checks>
std::string launches_after_a_failure() {
  Machine machine;
  launch("clears", clears, {1, machine.stream}, machine.column);
  emulation::fail_call(1, emulation::Failing::kOnce);
  std::string found;
  void* arguments[] = {&machine.column};
  const cudaError_t first =
      cudaLaunchKernel(counts_blocks<true>, dim3(1), dim3(kThreads), arguments, 0, machine.stream);
  cudaGetLastError();
  if (first == cudaSuccess || !checks) {
    launch("counts_blocks", counts_blocks<true>, {1, machine.stream}, machine.column);
    if (first_number(machine) != 2.0f) found = kWrong;
  }
  machine.finish();
  return found;
}

template <bool frees>
std::string allocates_twice() {
  const emulation::Holdings before = emulation::holdings();
  void *first = nullptr, *second = nullptr;
  emulation::fail_call(2, emulation::Failing::kOnce);
  cudaMalloc(&first, 64);
  if (cudaMalloc(&second, 64) != cudaSuccess && frees) cudaFree(first);
  cudaGetLastError();
  const bool lost = !(emulation::holdings() == before);
  if (!frees) cudaFree(first);
  return lost ? "memory is lost" : "";
}

std::string records_an_event_of_another_device() {
  const Setting two("POLICY_LOSS_EMULATION_DEVICES", "2");
  Machine machine;
  cudaEvent_t event;
  cudaSetDevice(1);
  cudaEventCreateWithFlags(&event, 0);
  const cudaError_t found = cudaEventRecord(event, machine.stream);
  cudaGetLastError();
  cudaSetDevice(0);
  cudaEventDestroy(event);
  return found == cudaSuccess ? "" : cudaGetErrorString(found);
}

}  // namespace
}  // namespace policy_loss::cuda

const std::vector<BrokenKernel>& planted_faults() {
  using namespace policy_loss::cuda;
  static const std::vector<BrokenKernel> all = {
    {"blocks with a fence before and after the ticket", "",
     run_blocks<sums_blocks<Fence::kBeforeTicket, Reads::kAfterFence>, Run::kAtOnce>},
    {"blocks with a fence before the ticket, and loads past the cache", "",
     run_blocks<sums_blocks<Fence::kBeforeTicket, Reads::kPastCache>, Run::kAtOnce>},
    {"blocks without a fence", kWrong,
     run_blocks<sums_blocks<Fence::kNone, Reads::kAfterFence>, Run::kLateStores>},
    {"a fence before the store", kWrong,
     run_blocks<sums_blocks<Fence::kBeforeStore, Reads::kAfterFence>, Run::kLateStores>},
    {"a fence after the ticket, one block after another", "",
     run_blocks<sums_blocks<Fence::kAfterTicket, Reads::kAfterFence>, Run::kLateStores>},
    {"no fence after the ticket, one block after another", "",
     run_blocks<sums_blocks<Fence::kBeforeTicket, Reads::kWithoutFence>, Run::kLateStores>},
    {"a barrier before the ticket", "", run_blocks<sums_threads_of_blocks<true>, Run::kAtOnce>},
    {"no barrier before the ticket", kWrong, run_blocks<sums_threads_of_blocks<false>, Run::kLateStores>},
    {"a ticket that is not atomic, one block after another", "",
     run_blocks<takes_tickets_without_atomics, Run::kLateStores>},
    {"a block that continues the one before, one block after another", "",
     run_blocks<continues_the_block_before, Run::kLateStores>},
    {"a sum that the first block sets, one block after another", "",
     run_blocks<sets_the_sum_in_the_first_block, Run::kLateStores>},
    {"atomic maximum", "", run_blocks<finds_the_largest<true>, Run::kAtOnce>},
    {"a maximum that is not atomic, one block after another", "",
     run_blocks<finds_the_largest<false>, Run::kLateStores>},
    {"a block that overwrites what others read, with late stores", "",
     run_blocks<overwrites_what_others_read, Run::kLateStores>},
    {"a counter with atomic additions", "", run_blocks<counts_blocks<true>, Run::kAtOnce>},
    {"a counter without atomic additions", kWrong, run_blocks<counts_blocks<false>, Run::kLateStores>},
#if !ADDRESS_SANITIZER  // with it, blocks do not run at the same time
    {"a fence after the ticket", kWrong,
     run_blocks<sums_blocks<Fence::kAfterTicket, Reads::kAfterFence>, Run::kAtOnce>},
    {"no fence after the ticket", kWrong,
     run_blocks<sums_blocks<Fence::kBeforeTicket, Reads::kWithoutFence>, Run::kAtOnce>},
    {"a ticket that is not atomic", kWrong, run_blocks<takes_tickets_without_atomics, Run::kAtOnce>},
    {"a block that continues the one before", kWrong, run_blocks<continues_the_block_before, Run::kAtOnce>},
    {"a sum that the first block sets", kWrong, run_blocks<sets_the_sum_in_the_first_block, Run::kAtOnce>},
    {"a maximum that is not atomic", kWrong, run_blocks<finds_the_largest<false>, Run::kAtOnce>},
    {"a block that overwrites what others read", kWrong,
     run_blocks<overwrites_what_others_read, Run::kAtOnce>},
#endif
    {"an unchecked store before a column", "out of bounds",
     run_with_shared_memory<writes_before_the_column_unchecked>, true},
    {"a store past the shared memory of a launch", "out of bounds",
     run_with_shared_memory<writes_past_shared_memory>, true},
    {"a load that needs more alignment than 16 bytes", "misaligned", run_with_shared_memory<loads_32_bytes>},
#if ADDRESS_SANITIZER
    {"an unchecked load past a column", "", run_with_shared_memory<reads_past_the_column_unchecked>, true},
#endif
    {"a copy past a column", "out of bounds", copies_past_the_column},
    {"memory that is freed after its copy", "", frees_under_a_copy<true>},
    {"memory that is freed while a copy uses it", "out of bounds", frees_under_a_copy<false>},
    {"host code that waits until an event is ready", "", asks_whether_ready<true, true>},
    {"host code that reads before an event is ready", kWrong, asks_whether_ready<false, false>},
    {"host code that leaves cudaErrorNotReady behind", "left behind", asks_whether_ready<true, false>},
    {"a launch that is checked", "", launches_after_a_failure<true>},
    {"a launch that is not checked", kWrong, launches_after_a_failure<false>},
    {"memory that is freed after a failure", "", allocates_twice<true>},
    {"memory that is not freed after a failure", "lost", allocates_twice<false>},
    {"an event of another device than its stream", "invalid resource handle",
     records_an_event_of_another_device},
  };
  return all;
}

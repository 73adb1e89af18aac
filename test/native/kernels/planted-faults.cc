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
  if (threadIdx.x < kValues) __stcs(column.data + threadIdx.x, 0.0f);
}

// Each block stores a number, and the block that takes the last ticket adds them up.
template <bool fence>
__global__ void sums_blocks(Column column) {
  if (threadIdx.x != 0) return;
  float* const numbers = column.data + 2;
  unsigned* const ticket = reinterpret_cast<unsigned*>(column.data + 1);
  numbers[blockIdx.x] = 1.0f;
  if (fence) __threadfence();
  const bool is_last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  if (!is_last) return;
  float sum = 0;
  for (unsigned block = 0; block < gridDim.x; ++block) sum += numbers[block];
  column.data[0] = sum;
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
  if (threadIdx.x == 0) column.data[0] = column.data[kValues];
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

// Runs a kernel that must set the first number of the column to the number of blocks, which see each other's
// stores late.
template <void (*kernel)(Column)>
std::string run_blocks() {
  const Setting late("POLICY_LOSS_EMULATION_STORES", "1");
  Machine machine;
  launch("clears", clears, {1, machine.stream}, machine.column);
  launch("kernel", kernel, {kBlocks, machine.stream}, machine.column);
  const bool right = first_number(machine) == static_cast<float>(kBlocks);
  const std::string message = machine.finish();
  return !message.empty() ? message : right ? "" : kWrong;
}

template <void (*kernel)(Column)>
std::string run_with_shared_memory() {
  Machine machine;
  launch("kernel", kernel, {1, machine.stream, 64}, machine.column);
  return machine.finish();
}

std::string copies_past_the_column() {
  Machine machine;
  const std::vector<float> from(kValues + 1);
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
    {"blocks with a fence before the ticket", "", run_blocks<sums_blocks<true>>},
    {"blocks without a fence", kWrong, run_blocks<sums_blocks<false>>},
    {"a counter with atomic additions", "", run_blocks<counts_blocks<true>>},
    {"a counter without atomic additions", kWrong, run_blocks<counts_blocks<false>>},
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

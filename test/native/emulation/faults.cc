// Implements what the whole emulation shares: its lock, the record of faults in kernels, the failures that
// tests ask for, and the reading of environment variables.
#include "faults.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "machine.h"

namespace emulation {
namespace {

// The message of the first fault in a kernel, or empty. As on a GPU, it is sticky: all later functions fail.
std::string& first_fault = *new std::string;
// The error that cudaGetLastError() returns on this thread.
thread_local cudaError_t last_error_of_thread = cudaSuccess;

int64_t calls = 0;
int64_t failing_call = 0;
Failing how_to_fail = Failing::kOnce;
std::string& failed = *new std::string;
int64_t last_from_environment = 0;

// A process that uses CUDA while it ends may crash. The emulation ends it with this exit status.
constexpr int kUsedAtTheEnd = 86;
bool unloaded = false;

void end_badly() {
  std::fputs("emulation: CUDA is used while the process ends\n", stderr);
  _exit(kUsedAtTheEnd);
}

// Runs at the end of the process, when CUDA would shut down.
void unload() {
  // A thread that is inside the runtime holds the lock.
  if (!mutex.try_lock()) end_badly();
  unloaded = true;
  mutex.unlock();
  usleep(20'000);  // lets threads go on that would use CUDA after its end
}

}  // namespace

std::recursive_mutex& mutex = *new std::recursive_mutex;

void record_fault(const std::string& message) {
  if (first_fault.empty()) first_fault = message;
}

bool has_fault() {
  return !first_fault.empty();
}

const char* message_of_fault() {
  return first_fault.c_str();
}

cudaError_t set_error(cudaError_t error) {
  if (error != cudaSuccess) last_error_of_thread = error;
  return error;
}

cudaError_t take_error() {
  return std::exchange(last_error_of_thread, cudaSuccess);
}

// Calls fail_call() if the environment variable has changed since the last call.
static void read_failing_call() {
  const auto n = static_cast<int64_t>(number_from_environment("POLICY_LOSS_EMULATION_FAIL", 0));
  if (n == last_from_environment) return;
  last_from_environment = n;
  const bool sticky = number_from_environment("POLICY_LOSS_EMULATION_STICKY", 0) != 0;
  fail_call(n, sticky ? Failing::kSticky : Failing::kOnce);
}

// Counts the calls of the function that the environment variable names.
static void count_call(const char* function) {
  const char* const counted = std::getenv("POLICY_LOSS_EMULATION_COUNT");
  if (!counted || std::strcmp(counted, function) != 0) return;
  const uint64_t before = number_from_environment("POLICY_LOSS_EMULATION_COUNTED", 0);
  setenv("POLICY_LOSS_EMULATION_COUNTED", std::to_string(before + 1).c_str(), 1);
}

cudaError_t enter(const char* function, cudaError_t failure) {
  static const int registered = std::atexit(unload);
  (void)registered;
  if (unloaded) end_badly();
  if (has_fault()) return set_error(cudaErrorLaunchFailure);
  read_failing_call();
  count_call(function);
  if (++calls != failing_call) return cudaSuccess;
  failed = function;
  setenv("POLICY_LOSS_EMULATION_FAILED", function, 1);
  if (how_to_fail == Failing::kOnce) return set_error(failure);
  record_fault("an illegal memory access was encountered");
  return set_error(cudaErrorLaunchFailure);
}

cudaError_t state_of_device() {
  return set_error(has_fault() ? cudaErrorLaunchFailure : cudaSuccess);
}

int64_t runtime_calls() {
  const Lock lock(mutex);
  return calls;
}

void fail_call(int64_t n, Failing how) {
  const Lock lock(mutex);
  failing_call = n == 0 ? 0 : calls + n;
  how_to_fail = how;
  failed.clear();
}

std::string failed_call() {
  const Lock lock(mutex);
  return failed;
}

Holdings holdings() {
  const Lock lock(mutex);
  run_all_streams();
  Holdings found{};
  count_memory(&found);
  count_streams(&found);
  found.pools = pools_in_use();
  return found;
}

void restart() {
  const Lock lock(mutex);
  first_fault.clear();
  take_error();
}

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

uint64_t shuffle_seed() {
  return number_from_environment("POLICY_LOSS_EMULATION_SHUFFLE", 0);
}

}  // namespace emulation

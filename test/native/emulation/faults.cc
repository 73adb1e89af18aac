// Implements what the whole emulation shares: its lock, the record of faults in kernels, and the reading of
// environment variables.
#include <cstdlib>
#include <utility>

#include "machine.h"

namespace emulation {
namespace {

// `first_fault` is the message of the first fault that has not been reported yet, or empty. `reported` is the
// message of the fault that was reported last.
std::string first_fault;
std::string reported;

}  // namespace

std::recursive_mutex mutex;

void record_fault(const std::string& message) {
  if (first_fault.empty()) first_fault = message;
}

bool has_fault() {
  return !first_fault.empty();
}

cudaError_t last_error() {
  return first_fault.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

cudaError_t take_error() {
  const cudaError_t error = last_error();
  if (error != cudaSuccess) reported = std::exchange(first_fault, {});
  return error;
}

const char* reported_fault() {
  return reported.c_str();
}

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

uint64_t shuffle_seed() {
  return number_from_environment("POLICY_LOSS_EMULATION_SHUFFLE", 0);
}

}  // namespace emulation

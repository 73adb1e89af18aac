// Fuzzes the CPU engine with libFuzzer. The bytes of an input determine a function with options, or a program
// of a user-defined loss, a batch of any layout, dtype and mask, and the results to compute. Some inputs
// determine rows of logits instead. The fuzzer
// checks for every input:
//
// - Nothing is read or written out of bounds (AddressSanitizer), and no behaviour is undefined
//   (UndefinedBehaviorSanitizer).
// - Results have the same bits on the calling thread with new memory, on the calling thread with reused
//   memory, and on a pool with one thread and with two.
// - Every element of a requested array is written.
// - Values of masked tokens, and of rows that count 0 times, change no bit of a result. Their gradient is 0.
// - Ordinary inputs (see kOrdinary) give finite results.
// - An aborted call reports that it was aborted.
// - An evaluation for which memory runs out reports it, or has the same bits.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>

#include "test/fuzz/targets.h"
#include "test/fuzz/tasks.h"

namespace fuzz {

std::string subject;

namespace {

constexpr int64_t kPlenty = std::numeric_limits<int64_t>::max() / 2;
std::atomic<int64_t> allocations_left{kPlenty};

}  // namespace

Scarcity::Scarcity(int64_t allocations) {
  allocations_left = allocations;
}
Scarcity::~Scarcity() {
  allocations_left = kPlenty;
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s: %s\n", subject.c_str(), what);
  std::abort();
}

}  // namespace fuzz

// Replaces the operator of the whole process. AddressSanitizer's other operators stay, and this one takes its
// memory from them.
void* operator new(size_t size) {
  void* const memory = fuzz::allocations_left.fetch_sub(1) > 0 ? ::operator new(size, std::nothrow) : nullptr;
  if (!memory) throw std::bad_alloc();
  return memory;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  fuzz::Bytes in(bytes, size);
  const int first = in.byte();
  const int kind = first % 8;
  // This byte stands for another call of an advantage function otherwise.
  if (first == 255)
    fuzz::fuzz_logits(in);
  else if (kind < 4)
    fuzz::fuzz_evaluation(in, first >= 128);
  else if (kind == 4)
    fuzz::fuzz_kl_values(in);
  else
    fuzz::fuzz_advantages(in);
  return 0;
}

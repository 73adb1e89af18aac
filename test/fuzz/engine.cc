// Fuzzes the CPU engine with libFuzzer. The bytes of an input become a function with options, a batch of any
// layout, dtype and mask, and the results that are wanted. For every input:
//
// - nothing is read or written out of bounds (AddressSanitizer), and no behaviour is undefined
//   (UndefinedBehaviorSanitizer);
// - results have the same bits on the calling thread in new memory, in reused memory, and on a pool with one
//   thread and with two;
// - every element of a wanted array is written;
// - values of masked tokens and of rows that count 0 times change no bit of a result, and their gradient is
// 0;
// - ordinary inputs (see kOrdinary) give finite results;
// - an aborted call reports that it was aborted.
#include <cstdio>
#include <cstdlib>

#include "test/fuzz/targets.h"
#include "test/fuzz/tasks.h"

namespace fuzz {

std::string subject;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s: %s\n", subject.c_str(), what);
  std::abort();
}

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  fuzz::Bytes in(bytes, size);
  const int kind = in.below(8);
  if (kind < 4)
    fuzz::fuzz_evaluation(in);
  else if (kind == 4)
    fuzz::fuzz_kl_values(in);
  else
    fuzz::fuzz_advantages(in);
  return 0;
}

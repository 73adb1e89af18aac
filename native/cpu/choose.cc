#include <cstdlib>
#include <cstring>

#include "cpu/target.h"

namespace policy_loss::cpu {

// Those that CMake builds for this architecture.
#if defined(__x86_64__)
extern const Target target_avx512;
extern const Target target_avx2;
extern const Target target_sse4;
#else
extern const Target target_neon;
#endif

namespace {

struct Candidate {
  const Target* target;
  bool runs_here;
};

// __builtin_cpu_supports asks the operating system too: a register file that it does not save is not
// supported.
const Candidate* candidates() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  static const Candidate all[] = {
      {&target_avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512cd")},
      {&target_avx2,
       __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")},
      {&target_sse4, true},
      {nullptr, false}};
#else
  static const Candidate all[] = {{&target_neon, true}, {nullptr, false}};
#endif
  return all;
}

}  // namespace

const Target* choose_target() {
  const char* wanted = std::getenv("POLICY_LOSS_ISA");
  for (const Candidate* c = candidates(); c->target; ++c)
    if (c->runs_here && (!wanted || !*wanted || std::strcmp(wanted, c->target->name) == 0)) return c->target;
  return nullptr;
}

}  // namespace policy_loss::cpu

// Chooses which build of the inner loops to use: the build for the instruction set that the environment
// variable POLICY_LOSS_ISA names or, if it names none, the build for the widest instruction set that the
// processor and the operating system support.
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cpu/target.h"

namespace policy_loss::cpu {

// CMake defines POLICY_LOSS_CANDIDATES as CANDIDATE(name) for each instruction set for which it builds the
// inner loops, the widest first.
#define CANDIDATE(name) extern const Target target_##name;
POLICY_LOSS_CANDIDATES
#undef CANDIDATE

namespace {

#if defined(__x86_64__)
// The bits that must be set in the results of cpuid on a processor of level x86-64-v3 or x86-64-v4.
constexpr unsigned kLevel3Leaf1 = bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C;
constexpr unsigned kLevel3Leaf7 = bit_BMI | bit_AVX2 | bit_BMI2;
constexpr unsigned kLevel4Leaf7 = bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL;
constexpr unsigned kLevel3Extended = 1u << 5;  // LZCNT
// The bits of the register XCR0 that must be set. They show that the operating system saves the SSE and AVX
// registers, or (kAvx512State) also the AVX-512 registers.
constexpr unsigned kAvxState = 0x06, kAvx512State = 0xe6;

// Returns the processor's x86-64 level, from 2 to 4. Level 2 is not checked, because all processors since
// 2009 have it. The function calls cpuid itself, because not every compiler has a built-in function for
// levels.
int x86_level() {
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & kLevel3Leaf1) != kLevel3Leaf1) return 2;
  unsigned state, high;
  __asm__("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
  if ((state & kAvxState) != kAvxState) return 2;
  if (!__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) || (ecx & kLevel3Extended) == 0) return 2;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (ebx & kLevel3Leaf7) != kLevel3Leaf7) return 2;
  return (ebx & kLevel4Leaf7) == kLevel4Leaf7 && (state & kAvx512State) == kAvx512State ? 4 : 3;
}
#endif

bool runs_here([[maybe_unused]] const Target& target) {
#if defined(__x86_64__)
  static const int level = x86_level();
  const auto is = [&](const char* name) { return std::strcmp(target.name, name) == 0; };
  return is("avx512") ? level >= 4 : is("avx2") ? level >= 3 : true;
#else
  return true;
#endif
}

}  // namespace

const Target* choose_target() {
  const char* wanted = std::getenv("POLICY_LOSS_ISA");
  const auto is_chosen = [&](const Target& target) {
    return runs_here(target) && (!wanted || !*wanted || std::strcmp(wanted, target.name) == 0);
  };
#define CANDIDATE(name) \
  if (is_chosen(target_##name)) return &target_##name;
  POLICY_LOSS_CANDIDATES
#undef CANDIDATE
  return nullptr;
}

}  // namespace policy_loss::cpu

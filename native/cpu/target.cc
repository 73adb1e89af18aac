// One instruction set's build of the inner loops: CMake compiles this file once for each, with
// POLICY_LOSS_TARGET naming the build and the flags that the instruction set needs.
#include "cpu/target.inc"

#include "cpu/advantages.inc"

#define PL_JOIN_(a, b) a##b
#define PL_JOIN(a, b) PL_JOIN_(a, b)
#define PL_TEXT_(a) #a
#define PL_TEXT(a) PL_TEXT_(a)

namespace policy_loss::cpu {

extern const Target PL_JOIN(target_, POLICY_LOSS_TARGET);
const Target PL_JOIN(target_, POLICY_LOSS_TARGET) = {
    PL_TEXT(POLICY_LOSS_TARGET), row_pass,  token_pass, traffic_pass, kl_pass,
    find_row_statistics,         broadcast, measure,    recur,        distill};

}  // namespace policy_loss::cpu

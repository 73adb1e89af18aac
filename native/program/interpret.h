// The body of the interpreter: what each arithmetic operation computes. The engines call it for every token
// with float32 numbers, and for every row or batch with float64 numbers.
#pragma once

#include "math/elementary.h"
#include "program/program.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

using program::Op;

// Calls visit.operator()<op>(), where op is the operation as a constant.
template <class Visit>
PL_FN void dispatch(Op op, const Visit& visit) {
  switch (op) {
#define X(name, operands)                      \
  case Op::k_##name:                           \
    visit.template operator()<Op::k_##name>(); \
    return;
    POLICY_LOSS_PROGRAM_OPS(X)
#undef X
  }
}

PL_FN float square_root(float x) {
  return __builtin_sqrtf(x);
}
PL_FN double square_root(double x) {
  return __builtin_sqrt(x);
}

PL_FN float round_down(float x) {
#if defined(__CUDA_ARCH__)
  return ::floorf(x);
#else
  return __builtin_floorf(x);
#endif
}
PL_FN double round_down(double x) {
#if defined(__CUDA_ARCH__)
  return ::floor(x);
#else
  return __builtin_floor(x);
#endif
}

// Returns the result of an arithmetic operation. Operands that the operation does not use are ignored.
// Transcendental functions are computed in float32 even if the numbers are float64, because every device
// computes the same bits of the functions in math/.
template <Op op, class Number>
PL_FN Number apply(Number a, Number b, Number c, Number d) {
  static_assert(is_arithmetic(op));
  const auto x = static_cast<float>(a);
  const Number one = 1, zero = 0;
  if constexpr (op == Op::k_add) return a + b;
  if constexpr (op == Op::k_sub) return a - b;
  if constexpr (op == Op::k_mul) return a * b;
  if constexpr (op == Op::k_mul_no_nan) return mul_no_nan(a, b);
  if constexpr (op == Op::k_div) return a / b;
  if constexpr (op == Op::k_min) return minimum(a, b);
  if constexpr (op == Op::k_max) return maximum(a, b);
  if constexpr (op == Op::k_pow) return pow(x, static_cast<float>(b));
  if constexpr (op == Op::k_lt) return a < b ? one : zero;
  if constexpr (op == Op::k_le) return a <= b ? one : zero;
  if constexpr (op == Op::k_eq) return a == b ? one : zero;
  if constexpr (op == Op::k_neg) return -a;
  if constexpr (op == Op::k_abs) return absolute(a);
  if constexpr (op == Op::k_sign) return sign(a);
  if constexpr (op == Op::k_sqrt) return square_root(a);
  if constexpr (op == Op::k_floor) return round_down(a);
  if constexpr (op == Op::k_exp) return exp_flushed(x);
  if constexpr (op == Op::k_expm1) return expm1(x);
  if constexpr (op == Op::k_exp_residual) return exp_residual(x);
  if constexpr (op == Op::k_exp_with_residual) return exp_with_residual(x);
  if constexpr (op == Op::k_log) return log(x);
  if constexpr (op == Op::k_log1p) return log1p(x);
  if constexpr (op == Op::k_tanh) return tanh(x);
  if constexpr (op == Op::k_sigmoid) return sigmoid(x);
  if constexpr (op == Op::k_logsigmoid) return logsigmoid(x);
  if constexpr (op == Op::k_select) return select(a, b, c);
  if constexpr (op == Op::k_select_lt) return a < b ? c : d;
  if constexpr (op == Op::k_select_le) return a <= b ? c : d;
  if constexpr (op == Op::k_select_eq) return a == b ? c : d;
  if constexpr (op == Op::k_clip) return at_most(at_least(a, b), c);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

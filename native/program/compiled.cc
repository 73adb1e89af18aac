#include "program/compiled.h"

namespace policy_loss::program {
namespace {

constexpr Instruction instruction(Op op, int out = 0, Operand a = {}, Operand b = {}, Operand c = {},
                                  Operand d = {}) {
  return {
      op, static_cast<uint8_t>(kOpOperands[static_cast<int>(op)]), static_cast<uint16_t>(out), {a, b, c, d}};
}

// The listed segments, each after an instruction that begins a token segment.
constexpr Instruction kListed[] = {
#define SEGMENT(...) instruction(Op::k_tokens),
#define REGISTERS(...)
#define ARITHMETIC(name, out, ...) instruction(Op::k_##name, out, __VA_ARGS__),
#define SUM(out, a) instruction(Op::k_row_sum, out, a),
#define EXTREME(name, out, a) instruction(Op::k_##name, out, a),
#define LOSS(a) instruction(Op::k_loss, 0, a),
#define METRIC(out, a) instruction(Op::k_metric, out, a),
#define GRAD(a, b) instruction(Op::k_grad, 0, a, b),
#define END_SEGMENT
#define R(index) \
  { Kind::kRegister, index }
#define C(index) \
  { Kind::kColumn, index }
#define U(index) \
  { Kind::kConstant, index }
#include "program/compiled_segments.inc"
};

// Returns whether an instruction is the listed one, which has the given numbers in place of the numbers of
// its uniform operands and of its result.
bool is_listed(const Instruction& x, const Instruction& listed, int* reductions) {
  if (x.op != listed.op) return false;
  const int out = is_row_reduction(x.op) ? (*reductions)++ : x.out;
  if (out != listed.out) return false;
  for (int i = 0; i < x.operands; ++i) {
    const Operand &a = x.operand[i], &b = listed.operand[i];
    if (is_uniform(a.kind) ? !is_uniform(b.kind) : a.kind != b.kind || a.index != b.index) return false;
  }
  return true;
}

}  // namespace

int compiled_segment(const Instruction* instructions, int count) {
  int segment = -1, matched = 0, reductions = 0;
  bool matches = false;
  for (const Instruction& listed : kListed) {
    if (listed.op == Op::k_tokens) {
      if (matches && matched == count) return segment;
      ++segment;
      matched = reductions = 0;
      matches = true;
      continue;
    }
    matches = matches && matched < count && is_listed(instructions[matched++], listed, &reductions);
  }
  return matches && matched == count ? segment : -1;
}

}  // namespace policy_loss::program

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
#define READ_AHEAD(...)
#define READ_AHEAD_OF_GRAD
#define BEGIN_LOOP
#define LOAD(...)
#define LOAD_SCANNED(...)
#define REGISTERS(...)
#define ARITHMETIC(name, out, ...) instruction(Op::k_##name, out, __VA_ARGS__),
#define CARRIED(number, name, out, ...) instruction(Op::k_##name, out, __VA_ARGS__),
#define SUM(out, a) instruction(Op::k_row_sum, out, a),
#define SUM_SINGLE(out, a) instruction(Op::k_row_sum_single, out, a),
#define EXTREME(name, out, a) instruction(Op::k_##name, out, a),
#define OF_POSITION(name, out, number, a) instruction(Op::k_##name, out, a),
#define SCAN(name, out, ...) instruction(Op::k_##name, out, __VA_ARGS__),
#define LOSS(a) instruction(Op::k_loss, 0, a),
#define METRIC(out, a) instruction(Op::k_metric, out, a),
#define LOSS_COPIED(a) instruction(Op::k_loss, 0, a),
#define METRIC_COPIED(out, a) instruction(Op::k_metric, out, a),
#define GRAD(a, b) instruction(Op::k_grad, 0, a, b),
#define END_LOOP
#define COPY(to, from)
#define END_SEGMENT
#define R(index) \
  { Kind::kRegister, index }
#define C(index) \
  { Kind::kColumn, index }
#define S(index) \
  { Kind::kScanned, index }
#define U(index) \
  { Kind::kConstant, index }
#include "program/compiled_segments.inc"
};

// Compares instructions with a listed segment.
class Matcher {
 public:
  // Returns whether x is the next instruction of the segment. A reduction's result is its number, and a
  // uniform operand's index stands for a number that is the same wherever the index is. Loops do not read the
  // factors of losses and metrics.
  bool accepts(const Instruction& x, const Instruction& listed) {
    if (x.op != listed.op || (is_row_reduction(x.op) ? reductions_++ : x.out) != listed.out) return false;
    const int read = x.op == Op::k_loss || x.op == Op::k_metric ? 1 : x.operands;
    for (int i = 0; i < read; ++i)
      if (!is_same(x.operand[i], listed.operand[i])) return false;
    return true;
  }

  // The program's operands for the indices of uniform operands.
  const std::vector<Operand>& uniforms() const { return uniforms_; }

 private:
  bool is_same(const Operand& a, const Operand& listed) {
    if (!is_uniform(listed.kind)) return a.kind == listed.kind && a.index == listed.index;
    if (!is_uniform(a.kind)) return false;
    if (listed.index == uniforms_.size()) uniforms_.push_back(a);
    const Operand& first = uniforms_[listed.index];
    return a.kind == first.kind && a.index == first.index;
  }

  int reductions_ = 0;
  std::vector<Operand> uniforms_;
};

}  // namespace

int compiled_segment(const Instruction* instructions, int count, std::vector<Operand>* uniforms) {
  constexpr int length = sizeof kListed / sizeof kListed[0];
  int index = -1;
  for (int at = 0; at < length;) {
    ++index;
    ++at;  // the instruction that begins the segment
    Matcher matcher;
    int matched = 0;
    while (at < length && kListed[at].op != Op::k_tokens && matched < count &&
           matcher.accepts(instructions[matched], kListed[at])) {
      ++matched;
      ++at;
    }
    if (matched == count && (at == length || kListed[at].op == Op::k_tokens)) {
      *uniforms = matcher.uniforms();
      return index;
    }
    while (at < length && kListed[at].op != Op::k_tokens) ++at;
  }
  return -1;
}

}  // namespace policy_loss::program

#include "program/compiled.h"

#include <algorithm>
#include <array>
#include <utility>

#include "program/segments.h"

namespace policy_loss::program {
namespace {

// The traces of the compiled segments, without the room that is left in them.
template <int index>
constexpr auto kInstructions = [] {
  constexpr Trace trace = trace_of<index>();
  std::array<Instruction, trace.count()> instructions;
  for (int i = 0; i < trace.count(); ++i) instructions[i] = trace[i];
  return instructions;
}();
template <int index>
constexpr auto kLiterals = [] {
  constexpr Trace trace = trace_of<index>();
  std::array<float, trace.literals()> literals;
  for (int i = 0; i < trace.literals(); ++i) literals[i] = trace.literal(i);
  return literals;
}();

struct Listed {
  const Instruction* instructions;
  int count;
  const float* literals;
};

template <int... index>
constexpr std::array<Listed, kSegments> listed(std::integer_sequence<int, index...>) {
  return {{{kInstructions<index>.data(), static_cast<int>(kInstructions<index>.size()),
            kLiterals<index>.data()}...}};
}
constexpr std::array<Listed, kSegments> kListed = listed(std::make_integer_sequence<int, kSegments>());

// Returns whether an operand is one number for all tokens of a row.
bool is_uniform(Kind kind) {
  return kind != Kind::kRegister && kind != Kind::kColumn && kind != Kind::kScanned;
}

bool is_same(const Operand& a, const Operand& b) {
  return a.kind == b.kind && a.index == b.index;
}

// Returns whether an operation computes a value for other instructions, instead of using one.
bool has_result(Op op) {
  return is_arithmetic(op) || is_of_position(op);
}

// Rewrites the instructions of a token segment as a trace has them. Equal values get the same register.
std::vector<Instruction> in_own_registers(const Instruction* instructions, int count) {
  std::vector<Instruction> result;
  uint8_t registers[kMaxRegisters] = {};
  int reductions = 0, positions = 0;
  for (int i = 0; i < count; ++i) {
    Instruction x = instructions[i];
    for (Operand& operand : x.operand)
      if (operand.kind == Kind::kRegister) operand.index = registers[operand.index];
    if (is_row_reduction(x.op)) x.out = static_cast<uint16_t>(reductions++);
    if (is_of_position(x.op)) x.out = static_cast<uint16_t>(positions++);
    const auto known = std::find_if(result.begin(), result.end(), [&](const Instruction& other) {
      return has_result(x.op) && x.op == other.op &&
             std::equal(x.operand, x.operand + x.operands, other.operand, is_same);
    });
    if (has_result(x.op)) registers[instructions[i].out] = static_cast<uint8_t>(known - result.begin());
    if (known == result.end()) result.push_back(x);
  }
  return result;
}

// Compares the instructions of a program with a listed segment.
class Matcher {
 public:
  Matcher(const Listed& listed, const std::vector<Instruction>& program, const double* constants)
      : listed_(listed), program_(program), constants_(constants) {}

  // Returns whether both use the same values in the same way, in any order.
  bool matches() {
    const Instruction* const end = listed_.instructions + listed_.count;
    const auto is_use = [](const Instruction& x) { return !has_result(x.op); };
    const auto is_in_program = [&](const Instruction& use) {
      return std::any_of(program_.begin(), program_.end(), [&](const auto& x) { return equals(use, x); });
    };
    return std::count_if(listed_.instructions, end, is_use) ==
               std::count_if(program_.begin(), program_.end(), is_use) &&
           std::all_of(listed_.instructions, end,
                       [&](const Instruction& x) { return !is_use(x) || is_in_program(x); });
  }

  // The program's operands for the uniform numbers.
  const std::vector<Operand>& uniforms() const { return uniforms_; }

 private:
  bool equals(const Instruction& listed, const Instruction& x) {
    if (listed.op != x.op || (!is_arithmetic(x.op) && listed.out != x.out)) return false;
    for (int k = 0; k < listed.operands; ++k)
      if (!equals(listed.operand[k], x.operand[k])) return false;
    return true;
  }

  bool equals(const Operand& listed, const Operand& x) {
    const bool has_kind = listed.kind == x.kind;
    if (listed.kind == Kind::kRegister) return has_kind && have_same_value(listed.index, x.index);
    if (listed.kind == Kind::kRowValue) return is_uniform(x.kind) && binds(listed.index, x);
    if (listed.kind == Kind::kConstant)
      return has_kind && float_bits(listed_.literals[listed.index]) ==
                             float_bits(static_cast<float>(constants_[x.index]));
    return is_same(listed, x);
  }

  bool have_same_value(int listed, int x) {
    if (values_[listed] == 0 && equals(listed_.instructions[listed], program_[x])) values_[listed] = 1 + x;
    return values_[listed] == 1 + x;
  }

  // Returns whether an operand is the uniform number with an index. The first one compared with it is.
  bool binds(size_t index, const Operand& x) {
    if (index >= uniforms_.size()) uniforms_.resize(index + 1, kUnbound);
    if (is_same(uniforms_[index], kUnbound)) uniforms_[index] = x;
    return is_same(uniforms_[index], x);
  }

  static constexpr Operand kUnbound = {Kind::kRegister, 0};

  const Listed& listed_;
  const std::vector<Instruction>& program_;
  const double* const constants_;
  // By listed register: 1 + the program's register with the same value, or 0 if it has not been compared.
  int values_[kMostInstructions] = {};
  std::vector<Operand> uniforms_;
};

}  // namespace

int compiled_segment(const Instruction* instructions, int count, const double* constants,
                     std::vector<Operand>* uniforms) {
  if (count > kMostInstructions) return -1;
  const std::vector<Instruction> program = in_own_registers(instructions, count);
  for (int index = 0; index < kSegments; ++index) {
    Matcher matcher(kListed[index], program, constants);
    if (!matcher.matches()) continue;
    *uniforms = matcher.uniforms();
    return index;
  }
  return -1;
}

}  // namespace policy_loss::program

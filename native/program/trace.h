// Traces of compiled segments. A function in generated/ that runs on a Trace and its Symbols, instead of on a
// token and its numbers, records the instructions of a program that computes the same.
#pragma once

#include <initializer_list>

#include "program/program.h"

namespace policy_loss::program {

// Chooses a compiled segment.
template <int index>
struct Index {};

// The most instructions of a compiled segment.
constexpr int kMostInstructions = 128;

class Trace;

// A number of a traced segment.
struct Symbol {
  Trace* trace;  // null for a literal
  Operand operand{};
  float literal = 0;

  PL_FN constexpr Symbol(float literal) : trace(nullptr), literal(literal) {}
  PL_FN constexpr Symbol(Trace* trace, Operand operand) : trace(trace), operand(operand) {}

  // Records an operation and returns its result. At least one operand is not a literal.
  static PL_FN constexpr Symbol traced(Op op, Symbol a, Symbol b = 0.0f, Symbol c = 0.0f, Symbol d = 0.0f);
  // Returns the instruction that computes the number.
  PL_FN constexpr const Instruction& instruction() const;

  // The functions that generated code calls.
  friend PL_FN constexpr Symbol operator+(Symbol a, Symbol b) { return traced(Op::k_add, a, b); }
  friend PL_FN constexpr Symbol operator-(Symbol a, Symbol b) { return traced(Op::k_sub, a, b); }
  friend PL_FN constexpr Symbol operator*(Symbol a, Symbol b) { return traced(Op::k_mul, a, b); }
  friend PL_FN constexpr Symbol mul_no_nan(Symbol a, Symbol b) { return traced(Op::k_mul_no_nan, a, b); }
  friend PL_FN constexpr Symbol operator/(Symbol a, Symbol b) { return traced(Op::k_div, a, b); }
  friend PL_FN constexpr Symbol operator-(Symbol a) { return traced(Op::k_neg, a); }
  friend PL_FN constexpr Symbol minimum(Symbol a, Symbol b) { return traced(Op::k_min, a, b); }
  friend PL_FN constexpr Symbol maximum(Symbol a, Symbol b) { return traced(Op::k_max, a, b); }
  friend PL_FN constexpr Symbol at_least(Symbol a, Symbol b) { return traced(Op::k_select_lt, a, b, b, a); }
  friend PL_FN constexpr Symbol at_most(Symbol a, Symbol b) { return traced(Op::k_select_lt, b, a, b, a); }
  friend PL_FN constexpr Symbol clip(Symbol a, Symbol b, Symbol c) { return traced(Op::k_clip, a, b, c); }
  friend PL_FN constexpr Symbol absolute(Symbol a) { return traced(Op::k_abs, a); }
  friend PL_FN constexpr Symbol sign(Symbol a) { return traced(Op::k_sign, a); }
  friend PL_FN constexpr Symbol square_root(Symbol a) { return traced(Op::k_sqrt, a); }
  friend PL_FN constexpr Symbol round_down(Symbol a) { return traced(Op::k_floor, a); }
  friend PL_FN constexpr Symbol pow(Symbol a, Symbol b) { return traced(Op::k_pow, a, b); }
  friend PL_FN constexpr Symbol exp_flushed(Symbol a) { return traced(Op::k_exp, a); }
  friend PL_FN constexpr Symbol exp_with_residual(Symbol a) { return traced(Op::k_exp_with_residual, a); }
  friend PL_FN constexpr Symbol exp_residual(Symbol a) { return traced(Op::k_exp_residual, a); }
  friend PL_FN constexpr Symbol expm1(Symbol a) { return traced(Op::k_expm1, a); }
  friend PL_FN constexpr Symbol log(Symbol a) { return traced(Op::k_log, a); }
  friend PL_FN constexpr Symbol log1p(Symbol a) { return traced(Op::k_log1p, a); }
  friend PL_FN constexpr Symbol tanh(Symbol a) { return traced(Op::k_tanh, a); }
  friend PL_FN constexpr Symbol sigmoid(Symbol a) { return traced(Op::k_sigmoid, a); }
  friend PL_FN constexpr Symbol logsigmoid(Symbol a) { return traced(Op::k_logsigmoid, a); }
  friend PL_FN constexpr Symbol select(Symbol a, Symbol b, Symbol c) { return traced(Op::k_select, a, b, c); }
};

// A condition of a traced segment: the number 1 if it holds, otherwise 0.
struct Condition {
  Symbol number;
};

// What engines know of a compiled segment before they run it.
struct SegmentShape {
  unsigned columns = 0;  // the columns that it reads
  int uniforms = 0, metrics = 0;
  unsigned sums = 0, singles = 0;  // the sets of its reductions row_sum and row_sum_single, by their number
  int loss_metric = -1;            // the metric that the segment outputs with the loss
  bool has_loss = false, has_grad = false;
};

// The instructions of a segment. Number i writes register i. Constants are indices of literals. Row value k
// stands for the uniform number k, which is the same for all tokens. Instead of a register, `out` is what the
// segment's function says: the index of a metric, of a scanned value, or of a reduction or a result that
// depends on positions among those of the segment.
class Trace {
 public:
  PL_FN constexpr Symbol column(int index) { return symbol(Kind::kColumn, index); }
  PL_FN constexpr Symbol scanned(int index) { return symbol(Kind::kScanned, index); }
  PL_FN constexpr Symbol uniform(int index) { return symbol(Kind::kRowValue, index); }
  PL_FN constexpr Condition is_at(int number, int index) {
    return {add(Op::k_is_at, number, {uniform(index)})};
  }
  PL_FN constexpr Condition is_up_to(int number, int index) {
    return {add(Op::k_is_up_to, number, {uniform(index)})};
  }
  PL_FN constexpr Symbol draw(int number, int index) { return add(Op::k_draw, number, {uniform(index)}); }
  PL_FN constexpr void loss(Symbol x) { add(Op::k_loss, 0, {x}); }
  PL_FN constexpr void metric(int index, Symbol x) { add(Op::k_metric, index, {x}); }
  PL_FN constexpr void metric(int index, Condition x) { metric(index, x.number); }
  PL_FN constexpr void loss_and_metric(int index, Symbol x) {
    loss(x);
    metric(index, x);
    loss_metric_ = index;
  }
  PL_FN constexpr void grad(Symbol x, Symbol factor) { add(Op::k_grad, 0, {x, factor}); }
  PL_FN constexpr void row_sum(int number, Symbol x) { add(Op::k_row_sum, number, {x}); }
  PL_FN constexpr void row_sum_single(int number, Symbol x) { add(Op::k_row_sum_single, number, {x}); }
  PL_FN constexpr void row_sum_single(int number, Condition x) { row_sum_single(number, x.number); }
  PL_FN constexpr void row_operand(Op op, int number, Symbol x) { add(op, number, {x}); }
  PL_FN constexpr void scan(Op op, int index, Symbol x) { add(op, index, {x}); }

  // Adds an instruction that reads some operands, and returns its result.
  PL_FN constexpr Symbol add(Op op, int out, std::initializer_list<Symbol> operands) {
    Instruction& x = instructions_[count_];
    x = {op, 0, static_cast<uint16_t>(out), {}};
    for (const Symbol& operand : operands) x.operand[x.operands++] = operand_of(operand);
    return symbol(Kind::kRegister, count_++);
  }

  PL_FN constexpr const Instruction& operator[](int index) const { return instructions_[index]; }
  PL_FN constexpr int count() const { return count_; }
  PL_FN constexpr float literal(int index) const { return literals_[index]; }
  PL_FN constexpr int literals() const { return literal_count_; }
  PL_FN constexpr SegmentShape shape() const;

 private:
  PL_FN constexpr Symbol symbol(Kind kind, int index) { return {this, {kind, static_cast<uint8_t>(index)}}; }
  PL_FN constexpr Operand operand_of(const Symbol& x) {
    if (x.trace) return x.operand;
    literals_[literal_count_] = x.literal;
    return {Kind::kConstant, static_cast<uint8_t>(literal_count_++)};
  }

  Instruction instructions_[kMostInstructions] = {};
  float literals_[kMostInstructions] = {};
  int count_ = 0, literal_count_ = 0, loss_metric_ = -1;
};

PL_FN constexpr const Instruction& Symbol::instruction() const {
  return (*trace)[operand.index];
}

PL_FN constexpr SegmentShape Trace::shape() const {
  SegmentShape shape;
  shape.loss_metric = loss_metric_;
  for (int i = 0; i < count_; ++i) {
    const auto [op, operands, out, operand] = instructions_[i];
    if (op == Op::k_metric && out >= shape.metrics) shape.metrics = out + 1;
    if (op == Op::k_row_sum) shape.sums |= 1u << out;
    if (op == Op::k_row_sum_single) shape.singles |= 1u << out;
    shape.has_loss |= op == Op::k_loss;
    shape.has_grad |= op == Op::k_grad;
    for (const auto [kind, index] : operand) {
      if (kind == Kind::kColumn) shape.columns |= reads(index);
      if (kind == Kind::kRowValue && index >= shape.uniforms) shape.uniforms = index + 1;
    }
  }
  return shape;
}

PL_FN constexpr Symbol Symbol::traced(Op op, Symbol a, Symbol b, Symbol c, Symbol d) {
  Trace* trace = nullptr;
  for (const Symbol& x : {a, b, c, d}) trace = x.trace ? x.trace : trace;
  const int count = kOpOperands[static_cast<int>(op)];
  if (count == 1) return trace->add(op, 0, {a});
  if (count == 2) return trace->add(op, 0, {a, b});
  return count == 3 ? trace->add(op, 0, {a, b, c}) : trace->add(op, 0, {a, b, c, d});
}

PL_FN constexpr Condition operator<(Symbol a, Symbol b) {
  return {Symbol::traced(Op::k_lt, a, b)};
}
PL_FN constexpr Condition operator<=(Symbol a, Symbol b) {
  return {Symbol::traced(Op::k_le, a, b)};
}
PL_FN constexpr Condition operator==(Symbol a, Symbol b) {
  return {Symbol::traced(Op::k_eq, a, b)};
}
PL_FN constexpr Symbol as_number(Condition a) {
  return a.number;
}

// Returns the operation that makes the choice of a condition, or 0 if the condition is not a comparison.
PL_FN constexpr Op choice_by(const Condition& condition) {
  const Op op = condition.number.instruction().op;
  if (op == Op::k_lt) return Op::k_select_lt;
  if (op == Op::k_le) return Op::k_select_le;
  return op == Op::k_eq ? Op::k_select_eq : Op{};
}

// The operations on conditions are those to which lib/program/compile.ts compiles them.
PL_FN constexpr Symbol select(Condition condition, Symbol a, Symbol b) {
  const Symbol& x = condition.number;
  if (choice_by(condition) == Op{}) return Symbol::traced(Op::k_select_lt, Symbol(0.0f), x, a, b);
  const auto [left, right, none, none2] = x.instruction().operand;
  return Symbol::traced(choice_by(condition), Symbol(x.trace, left), Symbol(x.trace, right), a, b);
}
PL_FN constexpr Condition both(Condition a, Condition b) {
  if (choice_by(a) == Op{}) return {Symbol::traced(Op::k_mul, a.number, b.number)};
  return {select(a, b.number, 0.0f)};
}
PL_FN constexpr Condition either(Condition a, Condition b) {
  return {Symbol::traced(Op::k_select_lt, a.number, b.number, b.number, a.number)};
}
PL_FN constexpr Condition operator!(Condition a) {
  return {Symbol::traced(Op::k_sub, Symbol(1.0f), a.number)};
}

}  // namespace policy_loss::program

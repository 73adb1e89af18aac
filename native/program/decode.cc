#include "program/decode.h"

#include <stdexcept>
#include <string>

#include "loss/loss.h"
#include "program/compiled.h"

namespace policy_loss::program {
namespace {

constexpr int kNumbersPerInstruction = 2 + kMaxOperands;

[[noreturn]] void refuse(const char* what) {
  throw std::invalid_argument(std::string("program: ") + what);
}

// Returns a size as an integer. Refuses it unless it is a whole number from 0 to `most`.
int size_of(double size, int most, const char* what) {
  if (!(size >= 0 && size <= most) || size != static_cast<int>(size)) refuse(what);
  return static_cast<int>(size);
}

// Checks the instructions of a program one after another.
class Checker {
 public:
  explicit Checker(const ProgramView& sizes)
      : sizes_(sizes), row_values_(sizes.row_values), batch_values_(sizes.batch_values) {}

  void begin_segment(Op kind) {
    end_segment();
    if (has_ended_) refuse("a segment follows the last one");
    has_ended_ = has_outputs_ && kind == Op::k_batch;
    may_output_ = !has_outputs_;
    if (kind == Op::k_batch && ++batch_segments_ > kMaxBatchSegments)
      refuse("it has too many batch segments");
    outputs_here_ = false;
    is_empty_ = true;
    kind_ = kind;
    registers_.assign(sizes_.registers, false);
    reductions_ = 0;
    // What the reductions before this segment wrote can now be read.
    publish(kPending, &row_values_);
    publish(kPending, &scanned_);
    if (kind != Op::k_batch) return;
    publish(kPending, &batch_values_);
    publish(kPendingGroup, &row_values_);
  }

  void check(const Instruction& x) {
    is_empty_ = false;
    for (int i = 0; i < x.operands; ++i) check_operand(x.operand[i]);
    for (int i = x.operands; i < kMaxOperands; ++i)
      if (x.operand[i].kind != Kind::kRegister || x.operand[i].index != 0)
        refuse("there are too many operands");
    const bool in_tokens = kind_ == Op::k_tokens;
    const bool in_row = kind_ == Op::k_row;
    if (is_of_position(x.op) || is_row_reduction(x.op) || is_scan(x.op) || is_output(x.op)) {
      if (!in_tokens) refuse("an operation on tokens is not in a token segment");
    } else if (x.op == Op::k_is_row || x.op == Op::k_row_rank || is_rows_reduction(x.op) ||
               is_group_reduction(x.op) || is_row_output(x.op) || x.op == Op::k_grad_log_z) {
      if (!in_row) refuse("an operation on rows is not in a row segment");
    }
    if (is_of_position(x.op) && is_of_token(x.operand[0])) refuse("a position differs among tokens");
    if (x.op == Op::k_row_rank || is_rows_selection(x.op)) check_selection(x);
    if (is_output(x.op) && is_of_token(x.operand[1])) refuse("a factor differs among tokens");
    if (is_scan(x.op) && is_of_token(x.operand[1]) && x.operands > 1) refuse("a decay differs among tokens");
    if (is_scan(x.op)) return add_reduction(x, &scanned_, kPending);
    if (is_row_reduction(x.op)) return add_reduction(x, &row_values_, kPending);
    if (is_rows_reduction(x.op)) return add_reduction(x, &batch_values_, kPending);
    if (is_group_reduction(x.op)) {
      if (compares_rows(x.op))
        check_compared(x);
      else if (x.op != Op::k_pair_sum)
        row_columns_ |= reads(kNextInGroup);
      return add_reduction(x, &row_values_, kPendingGroup);
    }
    if (is_output(x.op)) return add_output(x);
    if (is_row_output(x.op) || x.op == Op::k_grad_log_z || x.op == Op::k_batch_metric)
      return add_later_output(x);
    if (in_tokens) return write_register(x);
    write(in_row ? &row_values_ : &batch_values_, x.out, kWritten);
  }

  unsigned columns() const { return columns_; }
  unsigned row_columns() const { return row_columns_; }
  int gathered() const {
    int gathered = 0;
    for (int k = 0; k < kMaxGathered; ++k) gathered = is_gathered_[k] ? k + 1 : gathered;
    return gathered;
  }
  bool has_outputs() const { return has_outputs_; }
  bool has_grad() const { return has_grad_; }
  bool has_other_grad() const { return has_other_grad_; }
  bool has_batch_segment() const { return batch_segments_ > 0; }
  int scanned() const {
    int count = 0;
    for (int i = 0; i < kMaxScanned; ++i)
      if (scanned_[i] != kUnwritten) count = i + 1;
    return count;
  }
  void end() const {
    end_segment();
    if (!has_outputs_) refuse("it has no outputs");
    if (__builtin_popcount(columns_) > kMaxProgramColumns) refuse("it reads too many columns");
    if (sizes_.batch_metrics > 0 && !has_ended_) refuse("no segment outputs the metrics of the batch");
  }

 private:
  // The state of a row value, batch value or scanned value. A reduction's value is pending until the segment
  // ends, or, for a reduction over groups, until a batch segment begins.
  enum State : uint8_t { kUnwritten, kPending, kPendingGroup, kWritten };

  static bool is_of_token(const Operand& operand) {
    return operand.kind == Kind::kRegister || operand.kind == Kind::kColumn || operand.kind == Kind::kScanned;
  }

  // Engines load the first instruction of a token segment in advance.
  void end_segment() const {
    if (kind_ == Op::k_tokens && is_empty_) refuse("a token segment is empty");
  }

  static void publish(State pending, std::vector<State>* states) {
    for (State& state : *states)
      if (state == pending) state = kWritten;
  }

  static void write(std::vector<State>* states, int out, State state) {
    if (out >= static_cast<int>(states->size())) refuse("a value does not exist");
    if ((*states)[out] != kUnwritten) refuse("a value is written twice");
    (*states)[out] = state;
  }

  void check_operand(const Operand& operand) {
    const int index = operand.index;
    const bool in_tokens = kind_ == Op::k_tokens;
    const auto need = [](bool holds, const char* otherwise) {
      if (!holds) refuse(otherwise);
    };
    switch (operand.kind) {
      case Kind::kRegister:
        return need(in_tokens && index < sizes_.registers && registers_[index], "a register is not written");
      case Kind::kColumn:
        need(kind_ != Op::k_batch && index < kColumns, "a column cannot be read here");
        columns_ |= reads(index);
        return;
      case Kind::kConstant:
        return need(index < sizes_.constant_count, "a constant does not exist");
      case Kind::kRowValue:
        return need(kind_ != Op::k_batch && index < sizes_.row_values && row_values_[index] == kWritten,
                    "a row value cannot be read here");
      case Kind::kBatchValue:
        return need(index < sizes_.batch_values && batch_values_[index] == kWritten,
                    "a batch value cannot be read here");
      case Kind::kRowInput:
        return need(kind_ != Op::k_batch && index < kRowInputs, "a number of the row cannot be read here");
      case Kind::kBatchInput:
        return need(index < kBatchInputs, "a number of the batch does not exist");
      case Kind::kRowColumn:
        need(kind_ == Op::k_row && index < kRowColumns, "a row column cannot be read here");
        row_columns_ |= reads(index);
        return;
      case Kind::kScanned:
        return need(in_tokens && index < kMaxScanned && scanned_[index] == kWritten,
                    "a scanned value cannot be read here");
    }
    refuse("an operand has an unknown kind");
  }

  void check_selection(const Instruction& x) {
    const Operand& from = x.operand[0];
    if (from.kind != Kind::kRowValue || from.index >= kMaxGathered || !is_gathered_[from.index])
      refuse("a selection has no gathered values");
  }

  // Engines read the operands of other rows.
  static void check_compared(const Instruction& x) {
    for (int i = 0; i < x.operands; ++i)
      if (x.operand[i].kind != Kind::kRowValue) refuse("compared rows have no values");
  }

  void add_reduction(const Instruction& x, std::vector<State>* results, State state) {
    if (outputs_here_) refuse("a reduction is among the outputs");
    if (++reductions_ > kMaxReductions) refuse("a segment has too many reductions");
    if (x.op == Op::k_row_gather) {
      if (x.out >= kMaxGathered) refuse("too many values are gathered");
      is_gathered_[x.out] = true;
    }
    write(results, x.out, state);
  }

  void add_output(const Instruction& x) {
    if (!may_output_) refuse("two segments have outputs");
    if (reductions_ > 0) refuse("a reduction is among the outputs");
    outputs_here_ = true;
    has_outputs_ = true;
    if (x.op == Op::k_grad) has_grad_ = true;
    if (x.op == Op::k_grad_entropy) has_other_grad_ = true;
    if (x.op == Op::k_metric && x.out >= sizes_.metrics) refuse("a metric does not exist");
  }

  void add_later_output(const Instruction& x) {
    if (!has_outputs_) refuse("an output of rows or of the batch comes too early");
    if (x.op == Op::k_grad_log_z) has_other_grad_ = true;
    if (x.op == Op::k_row_metric && x.out >= sizes_.metrics) refuse("a metric does not exist");
    if (x.op != Op::k_batch_metric) return;
    if (kind_ != Op::k_batch || x.out >= sizes_.batch_metrics) refuse("a metric of the batch does not exist");
  }

  void write_register(const Instruction& x) {
    if (x.out >= sizes_.registers) refuse("a register does not exist");
    bool of_token = is_of_position(x.op);
    for (int i = 0; i < x.operands; ++i) of_token |= is_of_token(x.operand[i]);
    if (!of_token) refuse("an instruction for tokens reads nothing of a token");
    registers_[x.out] = true;
  }

  const ProgramView& sizes_;
  Op kind_ = Op::k_batch;        // of the segment
  bool is_empty_ = false;        // whether the segment has no instructions yet
  std::vector<bool> registers_;  // which ones the segment has written
  std::vector<State> row_values_, batch_values_, scanned_ = std::vector<State>(kMaxScanned);
  bool is_gathered_[kMaxGathered] = {};  // which row values row_gather writes
  int reductions_ = 0, batch_segments_ = 0;
  bool may_output_ = true, has_outputs_ = false;
  bool has_grad_ = false, has_other_grad_ = false;
  bool outputs_here_ = false;  // whether the segment has outputs
  bool has_ended_ = false;     // the last segment has begun
  unsigned columns_ = 0, row_columns_ = 0;
};

Instruction decode(const int32_t* numbers) {
  if (numbers[0] < 0 || numbers[0] >= kOps) refuse("an operation does not exist");
  if (numbers[1] < 0 || numbers[1] > kMaxInstructions) refuse("a result has no place");
  const auto operands = static_cast<uint8_t>(kOpOperands[numbers[0]]);
  Instruction x{static_cast<Op>(numbers[0]), operands, static_cast<uint16_t>(numbers[1]), {}};
  for (int i = 0; i < kMaxOperands; ++i) {
    const int32_t operand = numbers[2 + i];
    if (operand < 0 || operand >> 16 >= kKinds) refuse("an operand has an unknown kind");
    if ((operand & 0xffff) >= kMaxValues) refuse("an operand does not exist");
    x.operand[i] = {static_cast<Kind>(operand >> 16), static_cast<uint8_t>(operand & 0xff)};
  }
  return x;
}

}  // namespace

Program::Program(const Encoded& encoded) {
  const int64_t count = encoded.code_length / kNumbersPerInstruction;
  if (encoded.code_length % kNumbersPerInstruction != 0 || count == 0 || count > kMaxInstructions)
    refuse("its length is wrong");
  if (encoded.constant_count > kMaxValues) refuse("it has too many constants");
  constants_.assign(encoded.constants, encoded.constants + encoded.constant_count);
  sizes_.constant_count = static_cast<int>(encoded.constant_count);
  sizes_.registers = size_of(encoded.registers, kMaxRegisters, "it has too many registers");
  sizes_.row_values = size_of(encoded.row_values, kMaxValues, "it has too many row values");
  sizes_.batch_values = size_of(encoded.batch_values, kMaxValues, "it has too many batch values");
  sizes_.metrics = size_of(encoded.metrics, kMaxMetrics, "it has too many metrics");
  sizes_.batch_metrics = size_of(encoded.batch_metrics, kMaxBatchMetrics, "it has too many metrics");
  sizes_.all_rows = encoded.all_rows;

  Checker checker(sizes_);
  for (int64_t i = 0; i < count; ++i) {
    const Instruction x = decode(encoded.code + i * kNumbersPerInstruction);
    if (x.op <= Op::k_batch) {
      const int at = static_cast<int>(instructions_.size());
      segments_.push_back({x.op, at, at, 0, 0, -1, 0, 0});
      checker.begin_segment(x.op);
      continue;
    }
    if (segments_.empty()) refuse("it does not begin with a segment");
    const bool had_outputs = checker.has_outputs();
    checker.check(x);
    if (checker.has_outputs() && !had_outputs) sizes_.output_segment = static_cast<int>(segments_.size()) - 1;
    instructions_.push_back(x);
    segments_.back().last = static_cast<int>(instructions_.size());
    if (is_row_reduction(x.op)) ++segments_.back().reductions;
    if (is_scan(x.op)) ++segments_.back().scans;
    sizes_.has_ranks |= x.op == Op::k_token_rank;
  }
  checker.end();
  find_compiled();
  sizes_.columns = checker.columns();
  sizes_.row_columns = checker.row_columns();
  sizes_.gathered = checker.gathered();
  sizes_.has_grad = checker.has_grad();
  sizes_.has_other_grad = checker.has_other_grad();
  sizes_.has_batch_segment = checker.has_batch_segment();
  sizes_.scanned = checker.scanned();
  for (int s = 0; s < sizes_.output_segment; ++s)
    sizes_.has_several_passes |= segments_[s].kind == Op::k_batch;
}

void Program::find_compiled() {
  for (size_t at = 0; at < segments_.size(); ++at) {
    Segment& segment = segments_[at];
    if (segment.kind != Op::k_tokens) continue;
    if (at + 1 < segments_.size() &&
        joins_outputs(segments_[at + 1], static_cast<int>(at) + 1, sizes_.output_segment))
      ++at;
    const int last = segments_[at].last;
    std::vector<Operand> uniforms;
    segment.compiled =
        compiled_segment(&instructions_[segment.first], last - segment.first, constants_.data(), &uniforms);
    segment.first_uniform = static_cast<int>(uniforms_.size());
    uniforms_.insert(uniforms_.end(), uniforms.begin(), uniforms.end());
    segment.last_uniform = static_cast<int>(uniforms_.size());
    if (segment.compiled < 0) sizes_.interpreted += last - segment.first;
  }
}

ProgramView Program::view() const {
  ProgramView view = sizes_;
  view.instructions = instructions_.data();
  view.segments = segments_.data();
  view.constants = constants_.data();
  view.uniforms = uniforms_.data();
  view.instruction_count = static_cast<int>(instructions_.size());
  view.segment_count = static_cast<int>(segments_.size());
  view.uniform_count = static_cast<int>(uniforms_.size());
  return view;
}

}  // namespace policy_loss::program

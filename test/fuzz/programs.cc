#include "test/fuzz/programs.h"

#include <string>
#include <utility>
#include <vector>

namespace fuzz {
namespace {

using namespace policy_loss;
using program::Kind;
using program::Op;

constexpr double kConstants[] = {0, 1, -1, 2, 0.5, -3.25, 1e-3, 20, 1e30};
constexpr int kConstantCount = sizeof kConstants / sizeof kConstants[0];
constexpr int kMostMetrics = 3;

// Appends the instructions of a program, of which each reads only values that exist at that point.
class Writer {
 public:
  Writer(Bytes& in, int metrics)
      : in_(in), registers_(1 + in.below(program::kMaxRegisters)), metrics_(metrics) {}

  void write_segment(Op kind, bool may_reduce) {
    kind_ = kind;
    may_reduce_ = may_reduce && kind != Op::k_batch;
    written_.clear();
    reductions_ = 0;
    publish(&pending_rows_);
    readable_scanned_ = scanned_;
    readable_kept_ = kept_;
    if (kind == Op::k_batch) {
      readable_batch_ = batch_;
      publish(&pending_groups_);
    }
    append(kind, 0, {});
    for (int count = 1 + in_.below(12); count > 0; --count) write_instruction();
  }

  void write_outputs() {
    append(Op::k_loss, 0, {operand(), operand_of_row()});
    for (int k = 0; k < metrics_; ++k) append(Op::k_metric, k, {operand(), operand_of_row()});
    gradient_ = code_.size();
    append(Op::k_grad, 0, {operand(), operand_of_row()});
    if (in_.flag()) append(Op::k_grad_entropy, 0, {operand(), operand_of_row()});
  }

  program::Program finish(bool with_grad) const {
    program::Encoded encoded;
    encoded.code = code_.data();
    encoded.code_length = static_cast<int64_t>(with_grad ? code_.size() : gradient_);
    encoded.constants = kConstants;
    encoded.constant_count = kConstantCount;
    encoded.registers = registers_;
    encoded.row_values = rows_;
    encoded.batch_values = batch_;
    encoded.metrics = metrics_;
    return program::Program(encoded);
  }

 private:
  // Makes row values readable.
  void publish(std::vector<int>* pending) {
    readable_rows_.insert(readable_rows_.end(), pending->begin(), pending->end());
    pending->clear();
  }

  static int encode(Kind kind, int index) { return static_cast<int>(kind) << 16 | index; }

  void append(Op op, int out, const std::vector<int>& operands) {
    code_.push_back(static_cast<int32_t>(op));
    code_.push_back(out);
    for (size_t i = 0; i < program::kMaxOperands; ++i) code_.push_back(i < operands.size() ? operands[i] : 0);
  }

  int operand_of_token() {
    if (!written_.empty() && in_.flag())
      return encode(Kind::kRegister, written_[in_.below(static_cast<int>(written_.size()))]);
    if (readable_scanned_ > 0 && in_.flag()) return encode(Kind::kScanned, in_.below(readable_scanned_));
    return encode(Kind::kColumn, in_.below(program::kMaxProgramColumns));
  }
  // Returns an operand that is the same for all tokens of a row.
  int operand_of_row() {
    const bool has_rows = kind_ != Op::k_batch;
    const int choice = in_.below(4);
    if (choice == 0 && has_rows && !readable_rows_.empty())
      return encode(Kind::kRowValue, readable_rows_[in_.below(static_cast<int>(readable_rows_.size()))]);
    if (choice == 1 && readable_batch_ > 0) return encode(Kind::kBatchValue, in_.below(readable_batch_));
    if (choice == 2 && has_rows) return encode(Kind::kRowInput, in_.below(program::kRowInputs));
    if (choice == 3 && kind_ == Op::k_row && in_.flag())
      return encode(Kind::kColumn, in_.below(program::kMaxProgramColumns));
    return encode(Kind::kConstant, in_.below(kConstantCount));
  }
  int operand() { return kind_ == Op::k_tokens && in_.below(3) > 0 ? operand_of_token() : operand_of_row(); }

  void write_instruction() {
    const bool in_tokens = kind_ == Op::k_tokens;
    const bool may_reduce = may_reduce_ && reductions_ < program::kMaxReductions;
    const int first = static_cast<int>(Op::k_add), last = static_cast<int>(Op::k_select_eq);
    if (may_reduce && in_tokens && kept_ < program::kMaxGathered && in_.below(8) == 0) {
      ++reductions_;
      append(Op::k_row_gather, kept_++, {operand()});
    } else if (kind_ == Op::k_row && readable_kept_ > 0 && in_.below(4) == 0) {
      write_selection(may_reduce && in_.flag());
    } else if (may_reduce && in_.below(4) == 0) {
      ++reductions_;
      const Op from = in_tokens ? Op::k_row_sum : Op::k_rows_sum;
      const Op op = static_cast<Op>(static_cast<int>(from) + in_.below(5));
      if (in_tokens) pending_rows_.push_back(rows_);
      append(op, in_tokens ? rows_++ : batch_++, {operand()});
    } else if (may_reduce_ && in_.below(6) == 0 && reductions_ < program::kMaxReductions) {
      in_tokens ? write_scan() : write_pair_sum();
    } else if (kind_ != Op::k_batch && in_.below(8) == 0) {
      constexpr Op of_position[] = {Op::k_is_at, Op::k_is_up_to, Op::k_draw};
      append_result(in_tokens ? of_position[in_.below(3)] : Op::k_is_row, {operand_of_row()});
    } else {
      const Op op = static_cast<Op>(first + in_.below(last - first + 1));
      std::vector<int> operands;
      for (int i = 0; i < program::kOpOperands[static_cast<int>(op)]; ++i)
        operands.push_back(i == 0 && in_tokens ? operand_of_token() : operand());
      append_result(op, operands);
    }
  }

  void write_selection(bool over_rows) {
    const std::vector<int> operands = {encode(Kind::kRowValue, in_.below(readable_kept_)), operand_of_row()};
    if (!over_rows) return append_result(Op::k_row_rank, operands);
    ++reductions_;
    append(static_cast<Op>(static_cast<int>(Op::k_rows_rank) + in_.below(4)), batch_++, operands);
  }

  void write_scan() {
    if (scanned_ == program::kMaxScanned) return;
    ++reductions_;
    const Op op = static_cast<Op>(static_cast<int>(Op::k_prefix_sum) + in_.below(4));
    std::vector<int> operands{operand()};
    if (program::kOpOperands[static_cast<int>(op)] > 1) operands.push_back(operand_of_row());
    append(op, scanned_++, operands);
  }

  void write_pair_sum() {
    ++reductions_;
    pending_groups_.push_back(rows_);
    append(Op::k_pair_sum, rows_++, {operand()});
  }

  void append_result(Op op, const std::vector<int>& operands) {
    if (kind_ == Op::k_tokens) {
      const int out = in_.below(registers_);
      append(op, out, operands);
      written_.push_back(out);
    } else if (kind_ == Op::k_row) {
      readable_rows_.push_back(rows_);
      append(op, rows_++, operands);
    } else {
      append(op, batch_++, operands);
      readable_batch_ = batch_;
    }
  }

  Bytes& in_;
  std::vector<int32_t> code_;
  size_t gradient_ = 0;  // where the instructions that output the gradients begin
  Op kind_ = Op::k_tokens;
  bool may_reduce_ = false;
  std::vector<int> written_;  // the registers that the segment has written
  int registers_, metrics_;
  std::vector<int> readable_rows_, pending_rows_, pending_groups_;
  // The first row values are those of row_gather, which only selections read.
  int rows_ = program::kMaxGathered, kept_ = 0, readable_kept_ = 0, scanned_ = 0, readable_scanned_ = 0;
  int batch_ = 0, readable_batch_ = 0, reductions_ = 0;
};

}  // namespace

std::shared_ptr<const ProgramLoss> read_program_loss(Bytes& in) {
  const int metrics = in.below(kMostMetrics + 1);
  Writer writer(in, metrics);
  for (int count = in.below(6); count > 0; --count) {
    constexpr Op kinds[] = {Op::k_tokens, Op::k_row, Op::k_batch};
    writer.write_segment(kinds[in.below(3)], true);
  }
  writer.write_segment(Op::k_tokens, false);  // nothing could read its reductions
  writer.write_outputs();
  std::vector<ProgramMetric> list;
  for (int k = 0; k < metrics; ++k) list.push_back({"metric " + std::to_string(k), Metric::kTokenMean});
  return std::make_shared<const ProgramLoss>(writer.finish(true), writer.finish(false), std::move(list));
}

}  // namespace fuzz

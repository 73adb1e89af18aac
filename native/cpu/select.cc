#include "cpu/select.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "cpu/kept_values.h"

namespace policy_loss::cpu {
namespace {

// Returns whether an instruction of a segment writes an operand, which is a row value or a batch value.
bool writes(const program::Segment& segment, const program::Instruction& x, const program::Operand& operand) {
  if (program::is_output(x.op) || program::is_row_output(x.op) || x.op == program::Op::k_grad_log_z ||
      x.op == program::Op::k_batch_metric || x.out != operand.index)
    return false;
  const bool to_batch = segment.kind == program::Op::k_batch || program::is_rows_reduction(x.op);
  const bool to_row = segment.kind == program::Op::k_tokens ? program::is_row_reduction(x.op) : !to_batch;
  return operand.kind == program::Kind::kBatchValue ? to_batch : to_row;
}

// How much wider the limits around an estimated rank are. The estimate adds about as large an error as the
// sample has.
constexpr double kWidthOfEstimate = 2;

// Returns how much wider the limits of a further attempt are.
double width_of(int attempts) {
  return std::ldexp(1.0, 3 * attempts);
}

// Returns whether a sample can estimate an operand before a pass: a batch value that the batch segment at the
// end of the pass computes. After the values have been kept, the pass must neither run over the tokens again
// nor select among the values of rows.
bool can_estimate(const ProgramPass& pass, int segment_of_kept, const program::Operand& x) {
  const program::ProgramView& program = *pass.program;
  if (x.kind != program::Kind::kBatchValue) return false;
  for (int s = segment_of_kept + 1; s < pass.last_segment; ++s) {
    const program::Segment& segment = program.segments[s];
    if (segment.kind == program::Op::k_tokens) return false;
    for (int i = segment.first; i < segment.last; ++i)
      if (program.instructions[i].op == program::Op::k_row_rank) return false;
  }
  const program::Segment& batch = program.segments[pass.last_segment];
  for (int i = batch.first; i < batch.last; ++i)
    if (writes(batch, program.instructions[i], x)) return true;
  return false;
}

// Changes the operands of all reductions over rows.
template <class Change>
void for_operands(const TokenPass& pass, const Change& change) {
  const program::ProgramView& program = *pass.program.program;
  for (int64_t row = 0; row < pass.batch->layout.rows; ++row)
    std::for_each_n(pass.program.row_values + row * row_stride(program) + program.row_values,
                    program.batch_values, change);
}

}  // namespace

void take_candidates(KeptValues* to, const KeptToken* candidates, int n) {
  to->take(candidates, n);
}

Selector::Selector() = default;
Selector::~Selector() = default;

void Selector::start(const TokenPass& pass) {
  if (started_) return;
  started_ = true;
  const BatchView& batch = *pass.batch;
  for (int64_t row = 0; row < batch.layout.rows; ++row) {
    if (!takes_part(pass, row)) continue;
    if (first_row_ < 0) first_row_ = row;
    total_ += static_cast<double>(pass.row_tokens[row]) * batch.repeats_of(row);
  }
}

KeptValues& Selector::values_of(const TokenPass& pass, int kept) {
  std::unique_ptr<KeptValues>& values = values_[kept];
  if (!values) values = std::make_unique<KeptValues>(pass, kept, total_);
  return *values;
}

// Returns whether the value of an operand is known before a pass, and sets it.
bool Selector::is_known(const TokenPass& pass, const program::Operand& x, double* value) const {
  const ProgramPass& p = pass.program;
  const program::ProgramView& program = *p.program;
  if (x.kind == program::Kind::kConstant) {
    *value = program.constants[x.index];
    return true;
  }
  const bool of_batch = x.kind == program::Kind::kBatchValue;
  if ((!of_batch && x.kind != program::Kind::kRowValue) || first_row_ < 0) return false;
  for (int s = p.first_segment; s < program.segment_count; ++s)
    for (int i = program.segments[s].first; i < program.segments[s].last; ++i)
      if (writes(program.segments[s], program.instructions[i], x)) return false;
  *value = of_batch ? p.batch_values[x.index] : p.row_values[first_row_ * row_stride(program) + x.index];
  return true;
}

void Selector::prepare(TokenPass* pass) {
  start(*pass);
  ProgramPass& p = pass->program;
  const program::ProgramView& program = *p.program;
  if (total_ == 0) return;
  // The first selection among values that the pass keeps.
  const Instruction* first = nullptr;
  for (int i = program.segments[p.first_segment].first; !first && i < program.instruction_count; ++i) {
    const Instruction& x = program.instructions[i];
    if (!program::is_rows_selection(x.op)) continue;
    const int segment = segment_of_kept(program, x.operand[0].index);
    if (segment >= p.first_segment && segment < p.last_segment) first = &x;
  }
  if (!first) return;
  KeptValues& values = values_of(*pass, first->operand[0].index);
  if (pass->batch->layout.tokens() <= kFewTokens) {
    gathering_ = values.gathering();
    values.collect_between({}, &gathering_);
    p.gathering = &gathering_;
    return;
  }
  double by;
  const bool estimates = !is_known(*pass, first->operand[1], &by);
  if (estimates && !can_estimate(p, values.segment(), first->operand[1])) return;
  sampling_.selection = first;
  sampling_.pass = p;
  gathering_ = values.sample();
  gathering_.reduces = estimates;
  p.gathering = &gathering_;
  if (!estimates) {
    p.last_segment = values.segment() + 1;
    return;
  }
  const int64_t rows = pass->batch->layout.rows;
  sampling_.row_values.assign(p.row_values, p.row_values + rows * row_stride(program));
  sampling_.batch_values.assign(p.batch_values, p.batch_values + program.batch_values);
  p.row_values = sampling_.row_values.data();
  p.batch_values = sampling_.batch_values.data();
  // Rows without sampled tokens are not computed, so they add 0 to sums over rows.
  for_operands(*pass, [](double& x) { x = 0; });
}

void Selector::end_sample(TokenPass* pass) {
  const Sampling sampled = std::exchange(sampling_, {});
  const Instruction& selection = *sampled.selection;
  KeptValues& values = values_of(*pass, selection.operand[0].index);
  values.end_pass(gathering_);
  double by = 0, width = 1;
  if (gathering_.reduces) {
    const double share = values.sampled_share();
    for_operands(*pass, [share](double& x) { x /= share; });
    target()->program_batch(*pass);
    by = sampled.batch_values[selection.operand[1].index];
    width = kWidthOfEstimate;
  } else {
    is_known(*pass, selection.operand[1], &by);
  }
  pass->program = sampled.pass;
  if (std::isnan(by)) return;
  gathering_ = values.gathering();
  gathering_.sums = is_by_sum(selection.op);
  const double rank = gathering_.sums ? values.rank_by_sum(selection.op, by) : existing_rank(by, total_);
  values.collect_between(values.limits_around(rank, width), &gathering_);
  pass->program.gathering = &gathering_;
}

bool Selector::next(TokenPass* pass) {
  start(*pass);
  ProgramPass& p = pass->program;
  const program::ProgramView& program = *p.program;
  if (p.gathering) gathering_.to->end_pass(gathering_);
  p.gathering = nullptr;
  if (at_ < 0) {
    first_segment_ = p.first_segment;
    last_segment_ = p.last_segment;
    at_ = program.segments[first_segment_].first;
  }
  p.first_segment = first_segment_;
  p.last_segment = last_segment_;
  for (; at_ < program.segments[last_segment_].first; ++at_)
    if (program::is_rows_selection(program.instructions[at_].op) && !run(pass, program.instructions[at_]))
      return true;
  at_ = -1;
  return false;
}

// Has the next pass run the segment that keeps the values, and gather what is wanted.
void Selector::gather(TokenPass* pass, const Gathering& wanted) {
  gathering_ = wanted;
  pass->program.gathering = &gathering_;
  pass->program.first_segment = wanted.segment;
  pass->program.last_segment = wanted.segment + 1;
}

// Runs a selection. Returns false if it needs another pass.
bool Selector::run(TokenPass* pass, const Instruction& x) {
  const ProgramPass& p = pass->program;
  const int64_t stride = row_stride(*p.program);
  const double by = first_row_ < 0 ? 0 : p.row_values[first_row_ * stride + p.program->row_values + x.out];
  double result = x.op == program::Op::k_rows_rank_at ? -1 : 0;
  if (total_ > 0) {
    KeptValues& values = values_of(*pass, x.operand[0].index);
    const bool is_found = is_by_sum(x.op) ? find_by_sum(pass, &values, x.op, by, &result)
                                          : find_rank(pass, &values, x.op, by, &result);
    if (!is_found) return false;
  }
  attempts_ = 0;
  p.batch_values[x.out] = result;
  return true;
}

bool Selector::find_rank(TokenPass* pass, KeptValues* values, program::Op op, double by, double* result) {
  double rank = existing_rank(by, total_);
  if (values->has_all() && !values->encloses(rank)) {
    // The caller has masked tokens since they were counted. The result is undefined, but the search must end.
    if (values->found() == 0) return true;
    rank = values->found() - 1;
  }
  if (values->encloses(rank)) {
    *result = values->value_at(*pass, rank, op == program::Op::k_rows_rank_at);
    return true;
  }
  Gathering wanted = values->has_sample() ? values->gathering() : values->sample();
  if (values->has_sample())
    values->collect_between(values->limits_around(rank, width_of(attempts_++)), &wanted);
  gather(pass, wanted);
  return false;
}

bool Selector::find_by_sum(TokenPass* pass, KeptValues* values, program::Op op, double by, double* result) {
  if (values->find_by_sum(op, by, result)) return true;
  Gathering wanted = values->has_sample() ? values->gathering() : values->sample();
  if (values->has_sample()) {
    wanted.sums = true;
    values->collect_between(values->limits_around(values->rank_by_sum(op, by), width_of(attempts_++)),
                            &wanted);
  }
  gather(pass, wanted);
  return false;
}

}  // namespace policy_loss::cpu

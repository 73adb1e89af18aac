// Sends user-defined losses to a device and launches the kernels that interpret them.
#include "cuda/program.cuh"

#include <algorithm>

namespace policy_loss::cuda {
namespace {

// Returns the number of reductions over a row in the token segment of a stage that has the most of them.
int most_reductions(const program::ProgramView& program, int first, int last) {
  int most = 0;
  for (int at = first; at < last; ++at) {
    const Segment& segment = program.segments[at];
    int n = 0;
    for (int i = segment.first; i < segment.last; ++i)
      n += program::is_row_reduction(program.instructions[i].op) ? 1 : 0;
    most = std::max(most, n);
  }
  return most;
}

int tokens_memory(const program::ProgramView& program, unsigned columns) {
  return TokenInterpreter::bytes(program.registers, columns) + OutputSums::bytes(program.metrics);
}

}  // namespace

ProgramRun::ProgramRun(Context& context, const program::ProgramView& host, int64_t rows)
    : context_(context), host_(host), view_(host) {
  if (host.instruction_count == 0) return;  // the call has no user-defined loss
  view_.instructions = context.send_array(host.instructions, host.instruction_count, &instructions_);
  view_.segments = context.send_array(host.segments, host.segment_count, &segments_);
  view_.constants = context.send_array(host.constants, host.constant_count, &constants_);
  context.order_kernels_after_copies();
  row_values_ = context.allocate(rows * host.row_values * static_cast<int64_t>(sizeof(double)));
  batch_values_ = context.allocate(host.batch_values * static_cast<int64_t>(sizeof(double)));
}

int ProgramRun::memory() const {
  return tokens_memory(host_, host_.columns);
}

Stage ProgramRun::stage_of(int first, int last) const {
  Stage stage{first, last, 0};
  for (int at = first; at < last; ++at)
    for (int i = host_.segments[at].first; i < host_.segments[at].last; ++i)
      for (const Operand& operand : host_.instructions[i].operand)
        if (operand.kind == Kind::kColumn) stage.columns |= reads(operand.index);
  return stage;
}

void ProgramRun::launch_rows(const ProgramPass& pass, int first, int last) const {
  if (first == last) return;
  const Stage stage = stage_of(first, last);
  Grid grid = context_.grid_of_warps(pass.batch.layout.rows);
  grid.memory = TokenInterpreter::bytes(host_.registers, stage.columns) +
                RowReducer::bytes(most_reductions(host_, first, last));
  launch(program_rows_kernel, grid, pass, stage);
}

void ProgramRun::run(const Pass& pass) const {
  const ProgramPass whole{pass, view_, row_values_.as<double>(), batch_values_.as<double>()};
  const int outputs = host_.segment_count - 1;
  int first = 0;
  for (int at = 0; at < outputs; ++at) {
    if (host_.segments[at].kind != Op::k_batch) continue;
    launch_rows(whole, first, at);
    launch(program_batch_kernel, context_.grid(1), whole, Stage{first, at + 1, 0});
    first = at + 1;
  }
  launch_rows(whole, first, outputs);

  const Stage stage = stage_of(outputs, outputs + 1);
  Grid grid = context_.grid_of_spans(pass, pass.spans);
  grid.memory = tokens_memory(host_, stage.columns);
  launch(program_tokens_kernel, grid, whole, stage);
}

}  // namespace policy_loss::cuda

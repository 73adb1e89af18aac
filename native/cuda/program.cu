// Sends user-defined losses to a device and launches the kernels that interpret them.
#include "cuda/program.cuh"

#include <algorithm>

namespace policy_loss::cuda {
namespace {

// The largest programs fit into the shared memory that a block may have on every GPU with compute capability
// 8.0 or more.
constexpr int kMostSharedBytes = 99 * 1024;
constexpr int kMostSlotBytes =
    TokenInterpreter::bytes(program::kMaxRegisters, (1u << program::kMaxProgramColumns) - 1u);
static_assert(kMostSlotBytes + RowReducer::bytes(program::kMaxReductions) <= kMostSharedBytes);
static_assert(kMostSlotBytes + OutputSums::bytes(kMaxMetrics) + 1024 <= kMostSharedBytes,
              "the kernel also has up to 1024 bytes of static shared memory");

// If a row is longer than this, and so long that computing each row with one warp would leave most of the GPU
// idle for most of the time, all warps compute tiles of it.
constexpr int64_t kSharedRow = 4 * kSumTokens;
constexpr int64_t kSharesOfGrid = 4;

bool shares_rows(const Context& context, const DeviceBatch& batch) {
  const int64_t longest = batch.view.layout.row_length;
  return longest > kSharedRow && longest * context.most_blocks() * kWarps > kSharesOfGrid * batch.tokens;
}

// Returns the number of reductions over a row and scans in the token segment of a range that has the most of
// them.
int most_reductions(const program::ProgramView& program, int first, int last) {
  int most = 0;
  for (int at = first; at < last; ++at) {
    const Segment& segment = program.segments[at];
    int n = 0;
    for (int i = segment.first; i < segment.last; ++i)
      n += is_over_tokens(program.instructions[i].op) ? 1 : 0;
    most = std::max(most, n);
  }
  return most;
}

// Returns whether the segment with the outputs is compiled.
bool has_compiled_outputs(const program::ProgramView& program) {
  return program.segment_count > 0 && program.segments[program.output_segment].compiled >= 0;
}

// Returns how many registers the kernel of the outputs keeps in shared memory.
int registers_of_outputs(const program::ProgramView& program) {
  return has_compiled_outputs(program) ? 0 : program.registers;
}

int tokens_memory(int registers, const program::ProgramView& program, unsigned columns) {
  return TokenInterpreter::bytes(registers, columns) + OutputSums::bytes(program.metrics);
}

}  // namespace

ProgramEvaluation::ProgramEvaluation(Context& context, const Request& request, const DeviceBatch& batch)
    : context_(context),
      host_(request.program),
      other_(request.other_program),
      view_(request.program),
      batch_metrics_(request.batch_metrics) {
  if (host_.instruction_count == 0) return;  // the call has no user-defined loss
  view_.instructions = context.send_array(host_.instructions, host_.instruction_count, &instructions_);
  view_.segments = context.send_array(host_.segments, host_.segment_count, &segments_);
  view_.constants = context.send_array(host_.constants, host_.constant_count, &constants_);
  view_.uniforms = context.send_array(host_.uniforms, host_.uniform_count, &uniforms_);
  context.order_kernels_after_copies();
  row_values_ =
      context.allocate(batch.view.layout.rows * host_.row_values * static_cast<int64_t>(sizeof(double)));
  batch_values_ = context.allocate(host_.batch_values * static_cast<int64_t>(sizeof(double)));
  if (shares_rows(context, batch))
    tiles_ = context.allocate(most_reductions(host_, 0, host_.segment_count) *
                              (batch.tokens / kSumTokens + batch.view.layout.rows) *
                              static_cast<int64_t>(sizeof(Partial)));
  scanned_ = context.allocate(batch.tokens * host_.scanned * static_cast<int64_t>(sizeof(float)));
  if (host_.has_ranks) sorted_ = context.allocate(2 * batch.tokens * static_cast<int64_t>(sizeof(unsigned)));
  if (host_.gathered == 0) return;
  gathered_ = context.allocate(host_.gathered * batch.tokens * static_cast<int64_t>(sizeof(float)));
  ties_ = context.allocate(batch.view.layout.rows * static_cast<int64_t>(sizeof(unsigned)));
  selection_ = context.allocate(sizeof(Selection));
  CUDA_CHECK(cudaMemsetAsync(selection_.as<void>(), 0, sizeof(Selection), context.compute()));
}

int ProgramEvaluation::memory() const {
  const auto memory_of = [](const program::ProgramView& program) {
    return tokens_memory(registers_of_outputs(program), program, program.columns);
  };
  return std::max(memory_of(host_), memory_of(other_));
}

SegmentRange ProgramEvaluation::range_of(int first, int last) const {
  return {first, last, host_.token_columns(first, last)};
}

int ProgramEvaluation::reducer_memory(const SegmentRange& range) const {
  return TokenInterpreter::bytes(host_.registers, range.columns) +
         RowReducer::bytes(most_reductions(host_, range.first, range.last));
}

void ProgramEvaluation::launch_rows(const ProgramPass& pass, int first, int last) const {
  if (first == last) return;
  if (pass.tiles) return launch_shared_rows(pass, first, last);
  launch_range(pass, range_of(first, last), pass.batch.layout.rows);
}

void ProgramEvaluation::launch_range(const ProgramPass& pass, const SegmentRange& range,
                                     int64_t warps) const {
  Grid grid = context_.grid_of_warps(warps);
  if (range.work != SegmentRange::kJoin) grid.memory = reducer_memory(range);
  launch("program_rows_kernel", program_rows_kernel, grid, pass, range);
}

void ProgramEvaluation::launch_shared_rows(const ProgramPass& pass, int first, int last) const {
  const auto is_of_tokens = [&](int at) { return host_.segments[at].kind == Op::k_tokens; };
  while (first < last) {
    if (is_of_tokens(first)) {
      SegmentRange range = range_of(first, first + 1);
      range.work = SegmentRange::kTiles;
      launch_range(pass, range, pass.tile_count);
    }
    int next = first + 1;
    while (next < last && !is_of_tokens(next)) ++next;
    launch_range(pass, {first, next, 0, SegmentRange::kJoin}, pass.batch.layout.rows);
    first = next;
  }
}

void ProgramEvaluation::run(const Pass& pass, Result* host_result) const {
  ProgramPass whole{pass,
                    view_,
                    row_values_.as<double>(),
                    batch_values_.as<double>(),
                    scanned_.as<float>(),
                    gathered_.as<float>(),
                    selection_.as<Selection>(),
                    ties_.as<unsigned>(),
                    sorted_.as<unsigned>(),
                    tiles_.as<Partial>(),
                    count_tiles<kSumTokens>(pass)};
  const int outputs = host_.output_segment;
  int first = 0;
  for (int at = 0; at < outputs; ++at) {
    if (host_.segments[at].kind != Op::k_batch) continue;
    launch_rows(whole, first, at);
    launch_selections(whole, first, at);
    launch("program_batch_kernel", program_batch_kernel, context_.grid(1), whole,
           SegmentRange{first, at + 1});
    first = at + 1;
  }
  launch_rows(whole, first, outputs);
  const int end = host_.segment_count;
  const int end_of_rows = host_.segments[end - 1].kind == Op::k_batch ? end - 1 : end;
  const bool ends_with_outputs = !batch_metrics_ && end_of_rows <= outputs + 1;
  if (ends_with_outputs) whole.host_result = host_result;
  launch_outputs(whole);
  if (ends_with_outputs) return;

  launch_rows(whole, outputs + 1, end_of_rows);
  if (batch_metrics_) launch_selections(whole, first, end_of_rows);
  whole.host_result = host_result;
  launch("program_batch_kernel", program_batch_kernel, context_.grid(1), whole,
         batch_metrics_ ? SegmentRange{first, end} : SegmentRange{outputs + 1, end_of_rows});
}

void ProgramEvaluation::launch_selections(const ProgramPass& pass, int first, int last) const {
  Grid grid = context_.grid_of_warps(pass.batch.layout.rows);
  for (int at = first; at < last; ++at)
    for (int i = host_.segments[at].first; i < host_.segments[at].last; ++i) {
      const Op op = host_.instructions[i].op;
      if (!program::is_rows_selection(op)) continue;
      grid.memory = kSelectBytes;
      for (int digit = 0; digit < kDigits; ++digit)
        launch("program_select_kernel", program_select_kernel, grid, pass, i, digit);
      grid.memory = 0;
      if (op == Op::k_rows_rank_at) launch("program_place_kernel", program_place_kernel, grid, pass, i);
    }
}

void ProgramEvaluation::launch_outputs(const ProgramPass& pass) const {
  const SegmentRange range = range_of(host_.output_segment, host_.output_segment + 1);
  ProgramPass cut = pass;
  cut.program.registers = registers_of_outputs(host_);
  context_.cut(pass.fed_blocks, &cut);
  Grid grid = context_.grid_of_chunks(cut, cut.chunks);
  grid.memory = tokens_memory(cut.program.registers, host_, range.columns);
  launch("program_tokens_kernel",
         has_compiled_outputs(host_) ? program_tokens_kernel<true> : program_tokens_kernel<false>, grid, cut,
         range);
}

}  // namespace policy_loss::cuda

// The kernels that interpret a user-defined loss, which is a program (program/program.h).
//
// A row is computed by one warp, except in the segment with the outputs. If the warp begins at the row's
// first token, a token belongs to the lane with the number of its position modulo 32. So the lanes' partial
// sums are those of the CPU engine, and they are added up in the same order.
#pragma once

#include "cuda/program_scans.cuh"
#include "cuda/program_select.cuh"
#include "cuda/program_tokens.cuh"
#include "cuda/spans.cuh"
#include "program/groups.h"

namespace policy_loss::cuda {

// ---- Token segments with reductions, and row segments ----

// Returns a sum plus the values of a lane's unmasked tokens.
__device__ __forceinline__ float added(float sum, const Values& values, unsigned live) {
#pragma unroll
  for (int j = 0; j < kQuad; ++j) sum += live >> j & 1 ? values.of[j] : 0.0f;
  return sum;
}

// A lane's part of a reduction over a row.
union RowPartial {
  double sum;
  float single;  // of row_sum_single
  Extreme<float> extreme;
};

// Computes the reductions and scans of a token segment. One warp computes one row.
class RowReducer {
 public:
  // Returns how many bytes of shared memory the partial results of a block need.
  static constexpr int bytes(int reductions) {
    return reductions * kThreads * static_cast<int>(sizeof(RowPartial));
  }

  __device__ __forceinline__ RowReducer(const ProgramPass& pass, unsigned columns)
      : pass_(pass),
        interpreter_(pass, columns),
        partials_(static_cast<RowPartial*>(interpreter_.end_of_slots()) + threadIdx.x) {}

  // Computes the row values and scanned values that a segment writes.
  __device__ __forceinline__ void reduce(const Segment& segment, int64_t row) const {
    for_reductions(segment, [&](const Instruction& x, int n) { clear(x.op, n); });
    const int64_t length = pass_.batch.layout.length(row);
    // A row without tokens has one stretch too, because its reductions have results.
    for (int64_t from = 0; from == 0 || from < length; from += kSumTokens) {
      const int64_t to = min(from + kSumTokens, length);
      interpreter_.run(
          segment, row, from, to,
          [&](const Instruction& x, int n, const Values& values, const LaneTokens& tokens) {
            if (program::is_scan(x.op)) {
              store(scanned_of_row(pass_, x.out, row), values, tokens);
            } else {
              if (x.op == Op::k_row_keep) store(kept_of_row(pass_, x.out, row), values, tokens);
              add(x.op, partial(n), values, tokens);
            }
          },
          [](const LaneTokens&) {});
      const bool ends_chunk = to == length || to % kChunkTokens == 0;
      for_reductions(segment, [&](const Instruction& x, int n) {
        if (x.op == Op::k_row_sum_single)
          fold(x, n, row, from == 0);
        else if (ends_chunk)
          fold(x, n, row, to <= kChunkTokens);
      });
    }
    if (segment.scans > 0) scan_row(segment, row);
  }

 private:
  __device__ __forceinline__ RowPartial& partial(int n) const { return partials_[n * kThreads]; }

  // Stores the operands of a scan, or of row_keep.
  static __device__ __forceinline__ void store(float* to, const Values& values, const LaneTokens& tokens) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j)
      if (tokens.live >> j & 1) to[tokens.position(j)] = values.of[j];
  }

  // Replaces the operands of the segment's scans, which were stored, with the results.
  __device__ __forceinline__ void scan_row(const Segment& segment, int64_t row) const {
    __syncwarp();  // a lane reads operands that other lanes stored
    const Layout& layout = pass_.batch.layout;
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction x = load_instruction(pass_.program, i);
      if (!program::is_scan(x.op)) continue;
      const double decay = x.operands > 1 ? RowOperands{pass_, row}(x.operand[1]) : 0.0;
      scan(x.op, decay,
           {scanned_of_row(pass_, x.out, row), pass_.batch.mask + layout.begin(row), layout.length(row)});
    }
  }

  // Calls visit(instruction, n) for each reduction of the segment; n counts the reductions and scans.
  template <class Visit>
  __device__ __forceinline__ void for_reductions(const Segment& segment, Visit visit) const {
    int n = 0;
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction x = load_instruction(pass_.program, i);
      if (program::is_row_reduction(x.op)) visit(x, n);
      n += is_over_tokens(x.op) ? 1 : 0;
    }
  }

  __device__ __forceinline__ void clear(Op op, int n) const {
    if (op == Op::k_row_sum_single)
      partial(n).single = 0;
    else if (is_total(op))
      partial(n).sum = 0;
    else
      partial(n).extreme = {};
  }

  // Returns whether a reduction adds up numbers. row_keep counts the values.
  static __device__ __forceinline__ bool is_total(Op op) {
    return program::is_sum(op) || op == Op::k_row_keep;
  }

  static __device__ __forceinline__ void add(Op op, RowPartial& to, const Values& values,
                                             const LaneTokens& tokens) {
    if (op == Op::k_row_keep) {
      to.sum += __popc(tokens.live);
    } else if (op == Op::k_row_sum_single) {
      to.single = added(to.single, values, tokens.live);
    } else if (program::is_sum(op)) {
      double sum = to.sum;
#pragma unroll
      for (int j = 0; j < kQuad; ++j) sum += tokens.live >> j & 1 ? values.of[j] : 0.0f;
      to.sum = sum;
    } else {
      Extreme<float> extreme = to.extreme;
#pragma unroll
      for (int j = 0; j < kQuad; ++j)
        if (tokens.live >> j & 1)
          extreme.add(program::is_largest(op), values.of[j], static_cast<int>(tokens.position(j)));
      to.extreme = extreme;
    }
  }

  // Combines the lanes' partial results after a stretch of the row. Stores the result for all stretches so
  // far in the row value.
  __device__ __forceinline__ void fold(const Instruction& x, int n, int64_t row, bool is_first) const {
    double* const to = pass_.row_values + x.out * pass_.batch.layout.rows + row;
    double result;
    if (is_total(x.op)) {
      result = x.op == Op::k_row_sum_single ? static_cast<double>(warp_sum(partial(n).single))
                                            : warp_sum(partial(n).sum);
      clear(x.op, n);
      if (threadIdx.x % kWarp == 0 && !is_first) result += *to;
    } else {
      result = result_of(x.op, partial(n).extreme.of_warp(program::is_largest(x.op)));
    }
    if (threadIdx.x % kWarp == 0) *to = result;
  }

  const ProgramPass& pass_;
  const TokenInterpreter interpreter_;
  RowPartial* const partials_;
};

__device__ __forceinline__ void store_grad_log_z(const ProgramPass& pass, int64_t row, const Instruction& x) {
  if (pass.grad_log_z) pass.grad_log_z[row] = static_cast<float>(RowOperands{pass, row}(x.operand[0]));
}

// Runs a row segment with one warp. Only its first lane computes numbers; all lanes select.
__device__ __forceinline__ void run_row(const ProgramPass& pass, const Segment& segment, int64_t row) {
  const bool is_first_lane = threadIdx.x % kWarp == 0;
  for (int i = segment.first; i < segment.last; ++i) {
    const Instruction x = load_instruction(pass.program, i);
    if (is_over_rows(x.op)) continue;
    if (x.op == Op::k_grad_log_z) {
      if (is_first_lane) store_grad_log_z(pass, row, x);
      continue;
    }
    double result = 0;
    if (x.op == Op::k_row_rank) {
      const double rank = is_first_lane ? RowOperands{pass, row}(x.operand[1]) : 0.0;
      result = rank_in_row(pass, x.operand[0].index, row, __shfl_sync(kAllLanes, rank, 0));
    } else if (is_first_lane) {
      result = compute_one(x, {pass, row});
    }
    if (is_first_lane) pass.row_values[x.out * pass.batch.layout.rows + row] = result;
  }
}

// Runs the token segments and row segments of a stage.
static __global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor)
    program_rows_kernel(const ProgramPass pass, const Stage stage) {
  const RowReducer reducer(pass, stage.columns);
  const int64_t rows = pass.batch.layout.rows;
  for (int64_t row = first_warp(); row < rows; row += all_warps()) {
    if (!takes_part(pass, row)) continue;
    for (int at = stage.first; at < stage.last; ++at) {
      const Segment segment = pass.program.segments[at];
      if (segment.kind == Op::k_tokens) {
        reducer.reduce(segment, row);
      } else {
        run_row(pass, segment, row);
      }
      __syncwarp();  // the next segment reads the row values on all lanes
    }
  }
}

// ---- Reductions over rows, the outputs of rows, and batch segments ----

// Computes a reduction over all rows, or the sum of an output of rows, with one warp. Lane 0 gets the result.
// A row belongs to the lane with the number of its index modulo 32, as on the CPU.
__device__ __forceinline__ double reduce_rows(const ProgramPass& pass, const Instruction& x) {
  const bool largest = program::is_largest(x.op);
  const bool is_output = program::is_row_output(x.op);
  double sum = 0;
  Extreme<double> extreme;
#pragma unroll 4
  for (int64_t row = threadIdx.x % kWarp; row < pass.batch.layout.rows; row += kWarp) {
    if (!takes_part(pass, row)) continue;
    const double value = RowOperands{pass, row}(x.operand[0]);
    sum += is_output ? value * state_of_row(pass, row).repeats : value;
    extreme.add(largest, value, static_cast<int>(row));
  }
  sum = warp_sum(sum);
  extreme = extreme.of_warp(largest);
  return program::is_sum(x.op) || is_output ? sum : result_of(x.op, extreme);
}

// Computes a reduction over groups with all threads of the block. Each thread computes some of the groups.
__device__ __forceinline__ void reduce_groups(const ProgramPass& pass, const Instruction& x) {
  const int64_t rows = pass.batch.layout.rows;
  const RowGroups groups{x.op == Op::k_pair_sum ? nullptr : pass.batch.row_column[kNextInGroup], rows};
  double* const results = pass.row_values + x.out * rows;
  for (int64_t row = threadIdx.x; row < rows; row += kThreads)
    if (groups.is_last(row))
      reduce_group(
          x.op, groups, row, [&](int64_t r) { return takes_part(pass, r); },
          [&](int64_t r) {
            return RowOperands{pass, r}(x.operand[0]);
          },
          [&](int64_t r, double result) { results[r] = result; });
}

// Runs a batch segment in one thread.
__device__ __forceinline__ void run_batch(const ProgramPass& pass, const Segment& segment) {
  double* const metrics = pass.result->batch_metrics;
  for (int i = segment.first; i < segment.last; ++i) {
    const Instruction x = load_instruction(pass.program, i);
    if (x.op == Op::k_batch_metric)
      metrics[x.out] += RowOperands{pass, 0}(x.operand[0]);
    else
      pass.batch_values[x.out] = compute_one(x, {pass, 0});
  }
}

// Computes the reductions over rows in a stage, and adds the outputs of its rows to the sums of the tokens.
// If the stage ends with a batch segment, then runs that. Must be launched with one block.
static __global__ void __launch_bounds__(kThreads)
    program_batch_kernel(const ProgramPass pass, const Stage stage) {
  for (int at = stage.first; at < stage.last; ++at) {
    const Segment segment = pass.program.segments[at];
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction x = load_instruction(pass.program, i);
      if (program::is_group_reduction(x.op)) {
        reduce_groups(pass, x);
        continue;
      }
      // All instructions that write the same number are computed by the same warp.
      if (!is_over_rows(x.op) || program::is_rows_selection(x.op)) continue;
      if (x.out % kWarps != static_cast<int>(threadIdx.x / kWarp)) continue;
      const double result = reduce_rows(pass, x);
      if (threadIdx.x % kWarp != 0) continue;
      Sums& sums = pass.result->sums;
      if (x.op == Op::k_row_loss)
        sums.loss[0] += result;
      else if (x.op == Op::k_row_metric)
        sums.metric[x.out] += result;
      else
        pass.batch_values[x.out] = result;
    }
  }
  __syncthreads();
  const Segment last = pass.program.segments[stage.last - 1];
  if (last.kind == Op::k_batch && threadIdx.x == 0) {
    if (stage.last > pass.program.output_segment) {
      pass.result->has_batch_metrics = true;
      for (int k = 0; k < pass.program.batch_metrics; ++k) pass.result->batch_metrics[k] = 0;
    }
    run_batch(pass, last);
  }
  publish_result(pass);
}

// ---- The segment with the outputs ----

// The sums of the loss (number 0) and of the metrics (from number 1 on). Each thread has float32 sums over a
// row, and each warp has float64 sums over all its rows.
class OutputSums {
 public:
  // Returns how many bytes of shared memory the sums of a block need.
  static constexpr int bytes(int metrics) {
    return (1 + metrics) * static_cast<int>(kWarps * sizeof(double) + kThreads * sizeof(float));
  }

  __device__ __forceinline__ OutputSums(void* room, int metrics)
      : count_(1 + metrics),
        totals_(static_cast<double*>(room) + threadIdx.x / kWarp),
        sums_(reinterpret_cast<float*>(static_cast<double*>(room) + count_ * kWarps) + threadIdx.x) {
    for (int k = 0; k < count_; ++k) {
      sums_[k * kThreads] = 0;
      if (is_first_lane()) totals_[k * kWarps] = 0;
    }
  }

  __device__ __forceinline__ void add(int k, const Values& values, unsigned live) const {
    sums_[k * kThreads] = added(sums_[k * kThreads], values, live);
  }

  // Adds the sum over a row's tokens, times a factor, to the total.
  __device__ __forceinline__ void end_row(int k, double factor) const {
    const double sum = warp_sum(static_cast<double>(sums_[k * kThreads]));
    sums_[k * kThreads] = 0;
    if (is_first_lane()) totals_[k * kWarps] += sum * factor;
  }

  // Returns this thread's share of the total. It is 0 except for the first thread of a warp.
  __device__ __forceinline__ double total(int k) const {
    return k < count_ && is_first_lane() ? totals_[k * kWarps] : 0.0;
  }

 private:
  static __device__ __forceinline__ bool is_first_lane() { return threadIdx.x % kWarp == 0; }

  const int count_;
  double* const totals_;
  float* const sums_;
};

// Stores the gradient of a lane's tokens. It is 0 for masked tokens. The KL loss, if there is one, has
// already stored its gradient.
__device__ __forceinline__ void store_grad(const ProgramPass& pass, int64_t begin, const LaneTokens& tokens,
                                           const Values& grad) {
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    if ((tokens.exist >> j & 1) == 0) continue;
    float* const to = pass.grad + begin + tokens.position(j);
    const float value = tokens.live >> j & 1 ? grad.of[j] : 0.0f;
    if (!pass.terms.has_kl())
      __stcs(to, value);
    else if (tokens.live >> j & 1)
      __stcs(to, value + __ldcs(to));
  }
}

// Adds the gradient with respect to entropy of a lane's unmasked tokens to what the token pass has stored.
__device__ __forceinline__ void add_grad_entropy(const ProgramPass& pass, int64_t begin,
                                                 const LaneTokens& tokens, const Values& grad) {
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    if ((tokens.live >> j & 1) == 0) continue;
    float* const to = pass.grad_entropy + begin + tokens.position(j);
    __stcs(to, __ldcs(to) + grad.of[j]);
  }
}

// Returns the values times a factor.
__device__ __forceinline__ Values scaled(Values values, float factor) {
#pragma unroll
  for (int j = 0; j < kQuad; ++j) values.of[j] *= factor;
  return values;
}

// Returns the number of the sum to which an output belongs.
PL_FN int number_of_sum(const Instruction& x) {
  return x.op == Op::k_loss ? 0 : 1 + x.out;
}

// Runs the segment of a program with the outputs. Sums its losses and metrics, and writes the gradients.
static __global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor)
    program_tokens_kernel(const ProgramPass pass, const Stage stage) {
  const TokenInterpreter interpreter(pass, stage.columns);
  const OutputSums sums(interpreter.end_of_slots(), pass.program.metrics);
  const Segment segment = pass.program.segments[stage.first];
  for (int64_t span = first_warp(); span < pass.spans; span += all_warps()) {
    SpanRows rows(pass, span);
    const auto visit = [&](int64_t row, bool, int from, int to) {
      const RowState<NoRow>& state = state_of_row(pass, row);
      const int64_t begin = pass.batch.layout.begin(row);
      const int64_t first = rows.first() - begin;
      Values grad{};
      const auto end = [&](const LaneTokens& tokens) {
        if (pass.grad) store_grad(pass, begin, tokens, grad);
      };
      interpreter.run(
          segment, row, first + from, first + to,
          [&](const Instruction& x, int, const Values& values, const LaneTokens& tokens) {
            const auto times_factor = [&] {
              return scaled(values, static_cast<float>(RowOperands{pass, row}(x.operand[1])));
            };
            if (x.op == Op::k_grad)
              grad = times_factor();
            else if (x.op == Op::k_grad_entropy) {
              if (pass.grad_entropy) add_grad_entropy(pass, begin, tokens, times_factor());
            } else
              sums.add(number_of_sum(x), values, tokens.live);
          },
          end);
      // The factors of a row without tokens may be infinite.
      for (int i = segment.first; i < segment.last && state.tokens > 0; ++i) {
        const Instruction x = load_instruction(pass.program, i);
        if (x.op != Op::k_loss && x.op != Op::k_metric) continue;
        const double weight = x.op == Op::k_loss ? state.loss_weight : state.repeats;
        sums.end_row(number_of_sum(x), weight * RowOperands{pass, row}(x.operand[1]));
      }
    };
    rows.stretch(0, rows.length(), visit, [](int64_t) {});
  }

  double total[kProgramSums];
  for (int k = 0; k < kProgramSums; ++k) total[k] = sums.total(k);
  double sum;
  if (!grid_sum(total, pass.token_partials, &pass.totals->token_ticket, &sum)) return;
  Sums* const out = &pass.result->sums;
  const int k = threadIdx.x;
  if (k == 0) {
    out->loss[0] = sum;
    out->loss[1] = 0;
    if (!pass.terms.has_kl()) out->kl = 0;
    if (!pass.terms.entropy) out->entropy = 0;
  }
  if (k >= 1 && k < kProgramSums) out->metric[k - 1] = sum;
  publish_result(pass);
}

}  // namespace policy_loss::cuda

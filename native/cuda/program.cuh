// The kernels that interpret a user-defined loss, which is a program (program/program.h). Those for its token
// segments with reductions and for its row segments are in program_rows.cuh.
#pragma once

#include "cuda/chunks.cuh"
#include "cuda/program_rows.cuh"
#include "program/groups.h"

namespace policy_loss::cuda {

// ---- Reductions over rows, the outputs of rows, and batch segments ----

constexpr int kRowsAtOnce = 8;

// Computes a reduction over all rows, or the sum of an output of rows, with one warp. Lane 0 gets the result.
// A row belongs to the lane with the number of its index modulo 32, as on the CPU.
__device__ __forceinline__ double reduce_rows(const ProgramPass& pass, const Instruction& x) {
  const bool largest = program::is_largest(x.op);
  const bool is_output = program::is_row_output(x.op);
  double sum = 0;
  Extreme<double> extreme;
  const int64_t rows = pass.batch.layout.rows;
  const auto add = [&](int64_t row, const RowState<NoRow>& state, double value) {
    if (!takes_part(pass, state)) return;
    sum += is_output ? value * state.repeats : value;
    extreme.add(largest, value, static_cast<int>(row));
  };
  int64_t row = threadIdx.x % kWarp;
  if (x.operand[0].kind == Kind::kRowValue) {
    // Several rows are loaded at once, because one block must not wait for each of them.
    const double* const values = pass.row_values + x.operand[0].index * rows;
    for (; row + (kRowsAtOnce - 1) * kWarp < rows; row += kRowsAtOnce * kWarp) {
      RowState<NoRow> state[kRowsAtOnce];
      double value[kRowsAtOnce];
#pragma unroll
      for (int k = 0; k < kRowsAtOnce; ++k) {
        state[k] = state_of_row(pass, row + k * kWarp);
        value[k] = values[row + k * kWarp];
      }
#pragma unroll
      for (int k = 0; k < kRowsAtOnce; ++k) add(row + k * kWarp, state[k], value[k]);
    }
  }
  for (; row < rows; row += kWarp) add(row, state_of_row(pass, row), RowOperands{pass, row}(x.operand[0]));
  sum = warp_sum(sum);
  extreme = extreme.of_warp(largest);
  return program::is_sum(x.op) || is_output ? sum : result_of(x.op, extreme);
}

// Computes a reduction over groups with all threads of the block. Each thread computes some of the groups.
__device__ __forceinline__ void reduce_groups(const ProgramPass& pass, const Instruction& x) {
  const int64_t rows = pass.batch.layout.rows;
  const RowGroups groups{pass.batch.row_column[x.op == Op::k_pair_sum ? kNextInPair : kNextInGroup], rows};
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

// Computes an operation that compares all rows with all threads of the block.
__device__ __forceinline__ void compare_rows(const ProgramPass& pass, const Instruction& x) {
  const int64_t rows = pass.batch.layout.rows;
  const auto takes = [&](int64_t r) { return takes_part(pass, r); };
  const auto operand = [&](int k) {
    const double* const values = pass.row_values + x.operand[k].index * rows;
    return [=](int64_t r) { return values[r]; };
  };
  for (int64_t row = threadIdx.x; row < rows; row += kThreads)
    pass.row_values[x.out * rows + row] = x.op == Op::k_rank_of_row
                                              ? rank_of_row(row, rows, takes, operand(0))
                                              : at_rank(operand(1)(row), rows, takes, operand(0), operand(2));
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

// Computes the reductions over rows in a range, and adds the outputs of its rows to the sums of the tokens.
// If the range ends with a batch segment, then runs that. Must be launched with one block.
static __global__ void __launch_bounds__(kThreads)
    program_batch_kernel(const ProgramPass pass, const SegmentRange range) {
  for (int at = range.first; at < range.last; ++at) {
    const Segment segment = pass.program.segments[at];
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction x = load_instruction(pass.program, i);
      if (program::is_group_reduction(x.op)) {
        if (program::compares_rows(x.op))
          compare_rows(pass, x);
        else
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
  const Segment last = pass.program.segments[range.last - 1];
  if (last.kind == Op::k_batch && threadIdx.x == 0) {
    if (range.last > pass.program.output_segment) {
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

  // Returns this thread's sum number 0 over the row. The others follow, kThreads numbers apart.
  __device__ __forceinline__ float* first() const { return sums_; }

  __device__ __forceinline__ void add(int k, const Values& values, unsigned live) const {
    sums_[k * kThreads] = added(sums_[k * kThreads], values, live);
  }

  // Adds the sum over a row's tokens, times a factor, to the total.
  __device__ __forceinline__ void end_row(int k, double factor) const {
    const double sum = warp_sum(static_cast<double>(sums_[k * kThreads]));
    sums_[k * kThreads] = 0;
    if (is_first_lane()) totals_[k * kWarps] += sum * factor;
  }

  // Returns what this thread adds to the total. It is 0 except for the first thread of a warp.
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

// Runs the segment of a program with the outputs. Sums its losses and metrics, and writes the gradients. A
// kernel that could both run a compiled segment and interpret one would need too many registers.
template <bool is_compiled>
static __global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor)
    program_tokens_kernel(const ProgramPass pass, const SegmentRange range) {
  const TokenInterpreter interpreter(pass, range.columns);
  const OutputSums sums(interpreter.end_of_slots(), pass.program.metrics);
  const Segment segment = pass.program.segments[range.first];
  for (int64_t chunk = first_warp(); chunk < pass.chunks; chunk += all_warps()) {
    ChunkRows rows(pass, chunk);
    const auto visit = [&](int64_t row, bool, int from, int to) {
      const RowState<NoRow>& state = state_of_row(pass, row);
      const int64_t begin = pass.batch.layout.begin(row);
      const int64_t first = rows.first() - begin;
      if constexpr (is_compiled) {
        const float* const grads = interpreter.numbers_of_tokens();
        interpreter.run_compiled(
            segment, row, first + from, first + to,
            [&](const CompiledTokens& tokens) {
              compute_outputs(segment.compiled, tokens, sums.first(), interpreter.numbers_of_tokens());
            },
            [&](const LaneTokens& tokens) {
              if (!pass.grad) return;
              Values grad;
#pragma unroll
              for (int j = 0; j < kQuad; ++j) grad.of[j] = grads[j * kWarp];
              store_grad(pass, begin, tokens, grad);
            });
      } else {
        Values grad{};
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
            [&](const LaneTokens& tokens) {
              if (pass.grad) store_grad(pass, begin, tokens, grad);
            });
      }
      // The factors of a row without tokens may be infinite.
      for (int i = segment.first; i < segment.last && state.tokens > 0; ++i) {
        const Instruction x = load_instruction(pass.program, i);
        if (x.op != Op::k_loss && x.op != Op::k_metric) continue;
        const double weight = x.op == Op::k_loss ? state.loss_weight : state.repeats;
        sums.end_row(number_of_sum(x), weight * RowOperands{pass, row}(x.operand[1]));
      }
    };
    rows.visit(0, rows.length(), visit, [](int64_t) {});
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

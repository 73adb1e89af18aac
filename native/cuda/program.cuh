// The kernels that interpret a user-defined loss, which is a program (program/program.h).
//
// All lanes of a warp compute the same instruction. A lane computes it for four tokens at once, so that the
// cost of decoding is shared. The lane's tokens are 32 tokens apart. A token therefore belongs to the lane
// with the number of its position modulo 32, and the partial results of the lanes are those of the CPU
// engine. The registers, and the columns that the program reads, are in shared memory.
#pragma once

#include "cuda/program.h"
#include "cuda/spans.cuh"
#include "program/interpret.h"

namespace policy_loss::cuda {

using program::Instruction;
using program::Kind;
using program::Op;
using program::Operand;
using program::Segment;

// The number of positions in a row after which the partial sums over the row are added up.
constexpr int64_t kChunkTokens = 16384;

__device__ __forceinline__ const RowState<NoRow>& state_of_row(const Pass& pass, int64_t row) {
  return static_cast<const RowState<NoRow>*>(pass.states)[row];
}

__device__ __forceinline__ Instruction load_instruction(const program::ProgramView& program, int at) {
  // One load instead of one per member.
  static_assert(sizeof(Instruction) == sizeof(uint4));
  const uint4 bits = reinterpret_cast<const uint4*>(program.instructions)[at];
  Instruction instruction;
  memcpy(&instruction, &bits, sizeof bits);
  return instruction;
}

// Reads the operands that are the same for all tokens of a row.
struct RowOperands {
  const ProgramPass& pass;
  int64_t row;

  __device__ __forceinline__ double operator()(const Operand& x) const {
    switch (x.kind) {
      case Kind::kConstant:
        return pass.program.constants[x.index];
      case Kind::kRowValue:
        return __ldcg(pass.row_values + x.index * pass.batch.layout.rows + row);
      case Kind::kBatchValue:
        return __ldcg(pass.batch_values + x.index);
      case Kind::kRowInput:
        return input(x.index);
      default:
        return 0.0;
    }
  }

 private:
  __device__ __forceinline__ double input(int index) const {
    const RowState<NoRow>& state = state_of_row(pass, row);
    return index == program::kRowTokens   ? state.tokens
           : index == program::kRowWeight ? state.loss_weight
                                          : static_cast<double>(state.repeats);
  }
};

// Computes an arithmetic operation with N numbers per operand.
template <class Number, int N>
struct Arithmetic {
  const Number (&a)[N];
  const Number (&b)[N];
  const Number (&c)[N];
  Number (&out)[N];

  template <Op op>
  PL_FN void operator()() const {
    if constexpr (program::is_arithmetic(op))
      for (int j = 0; j < N; ++j) out[j] = apply<op, Number>(a[j], b[j], c[j]);
  }
};

PL_FN bool has_three_operands(Op op) {
  return op == Op::k_select || op == Op::k_clip;
}
PL_FN bool has_two_operands(Op op) {
  return op <= Op::k_eq || has_three_operands(op);
}

// Computes an instruction of a row segment or of a batch segment that is not a reduction.
__device__ __forceinline__ double compute_one(const Instruction& x, const RowOperands& operand) {
  const double a[] = {operand(x.operand[0])};
  if (x.op == Op::k_is_row) return a[0] == static_cast<double>(operand.row) ? 1.0 : 0.0;
  const double b[] = {has_two_operands(x.op) ? operand(x.operand[1]) : 0.0};
  const double c[] = {has_three_operands(x.op) ? operand(x.operand[2]) : 0.0};
  double out[1] = {};
  dispatch(x.op, Arithmetic<double, 1>{a, b, c, out});
  return out[0];
}

// The smallest or largest of several numbers, and the first position that has it. NaN replaces any number.
template <class Number>
struct Extreme {
  Number value = 0;
  int position = -1;  // −1 before the first number

  __device__ __forceinline__ void add(bool largest, Number x, int at) {
    if (at >= 0 && (position < 0 || is_before(largest, x, at))) *this = {x, at};
  }

  // Returns the result of all lanes of a warp. Only lane 0 gets it.
  __device__ __forceinline__ Extreme of_warp(bool largest) const {
    Extreme all = *this;
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const Number other = __shfl_down_sync(kAllLanes, all.value, distance);
      const int at = __shfl_down_sync(kAllLanes, all.position, distance);
      all.add(largest, other, at);
    }
    return all;
  }

 private:
  __device__ __forceinline__ bool is_before(bool largest, Number x, int at) const {
    if (x != x || value != value) return x != x && (value == value || at < position);
    if (x == value) return at < position;
    return largest ? x > value : x < value;
  }
};

PL_FN bool is_sum(Op op) {
  return op == Op::k_row_sum || op == Op::k_rows_sum;
}
PL_FN bool is_largest(Op op) {
  return op == Op::k_row_max || op == Op::k_row_arg_max || op == Op::k_rows_max || op == Op::k_rows_arg_max;
}
PL_FN bool is_position(Op op) {
  return op == Op::k_row_arg_min || op == Op::k_row_arg_max || op == Op::k_rows_arg_min ||
         op == Op::k_rows_arg_max;
}
template <class Number>
__device__ __forceinline__ double result_of(Op op, const Extreme<Number>& extreme) {
  return is_position(op) ? static_cast<double>(extreme.position) : static_cast<double>(extreme.value);
}

// The values of a lane's four tokens.
struct alignas(16) Values {
  float of[kQuad];
};

// The four tokens of a lane. They are kWarp tokens apart.
struct LaneTokens {
  int64_t first;   // the position of the first of them in the row
  unsigned exist;  // bit j: token j is one of those to compute
  unsigned live;   // bit j: it is also unmasked

  __device__ __forceinline__ int64_t position(int j) const { return first + j * kWarp; }
};

// Runs token segments.
class TokenInterpreter {
 public:
  // Returns how many bytes of shared memory the registers and the columns of a block need.
  static int bytes(int registers, unsigned columns) {
    return (registers + __builtin_popcount(columns)) * kThreads * static_cast<int>(sizeof(Values));
  }

  __device__ __forceinline__ TokenInterpreter(const ProgramPass& pass, unsigned columns)
      : pass_(pass), columns_(columns), slots_(reinterpret_cast<Values*>(launch_memory())) {}

  // Returns the shared memory after the registers and columns.
  __device__ __forceinline__ void* end_of_slots() const {
    return slots_ + (pass_.program.registers + __popc(columns_)) * kThreads;
  }

  // Runs a segment on the tokens [from, to) of a row. Positions count from the row's first token. Calls
  // visit(instruction, n, values, tokens) for each instruction that is not arithmetic; n counts these
  // instructions. Calls end(tokens) after the last instruction. If all tokens of the warp are masked, only
  // end() is called.
  template <class Visit, class End>
  __device__ __forceinline__ void run(const Segment& segment, int64_t row, int64_t from, int64_t to,
                                      Visit visit, End end) const {
    const RowOperands shared{pass_, row};
    const int64_t begin = pass_.batch.layout.begin(row);
    const bool counts = state_of_row(pass_, row).tokens > 0;
    for (int64_t at = from; at < to; at += kStretch) {
      LaneTokens tokens = find_tokens(begin, at + threadIdx.x % kWarp, to);
      if (!counts) tokens.live = 0;
      load_columns(begin, row, tokens);
      if (__reduce_or_sync(kAllLanes, tokens.live) != 0) run_on(segment, shared, tokens, visit);
      end(tokens);
    }
  }

 private:
  __device__ __forceinline__ Values& slot(int index) const { return slots_[index * kThreads + threadIdx.x]; }
  __device__ __forceinline__ int slot_of_column(unsigned column) const {
    return pass_.program.registers + __popc(columns_ & (reads(column) - 1u));
  }

  // Returns the lane's tokens that begin at position `first`. Only positions before `to` exist.
  __device__ __forceinline__ LaneTokens find_tokens(int64_t begin, int64_t first, int64_t to) const {
    LaneTokens tokens{first, 0, 0};
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if (tokens.position(j) >= to) continue;
      tokens.exist |= 1u << j;
      if (__ldcg(pass_.batch.mask + begin + tokens.position(j)) != 0) tokens.live |= 1u << j;
    }
    return tokens;
  }

  // Loads the columns of the unmasked tokens. The values of other tokens are 0.
  __device__ __forceinline__ void load_columns(int64_t begin, int64_t row, const LaneTokens& tokens) const {
    int to = pass_.program.registers;
    for (int c = 0; c < kColumns; ++c) {
      if ((columns_ >> c & 1) == 0) continue;
      const ColumnView& column = pass_.batch.column[c];
      Values values{};
#pragma unroll
      for (int j = 0; j < kQuad; ++j)
        if (tokens.live >> j & 1)
          values.of[j] = load_one(column, column.per_row ? row : begin + tokens.position(j));
      slot(to++) = values;
    }
  }

  __device__ __forceinline__ Values operand(const Operand& x, const RowOperands& shared) const {
    if (x.kind == Kind::kRegister) return slot(x.index);
    if (x.kind == Kind::kColumn) return slot(slot_of_column(x.index));
    const float value = static_cast<float>(shared(x));
    return {{value, value, value, value}};
  }

  template <class Visit>
  __device__ __forceinline__ void run_on(const Segment& segment, const RowOperands& shared,
                                         const LaneTokens& tokens, Visit visit) const {
    int others = 0;
    Instruction next = load_instruction(pass_.program, segment.first);
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction x = next;
      // The load takes as long as the computation of an instruction.
      if (i + 1 < segment.last) next = load_instruction(pass_.program, i + 1);
      Values out;
      if (x.op == Op::k_is_at) {
        const double at = shared(x.operand[0]);
#pragma unroll
        for (int j = 0; j < kQuad; ++j)
          out.of[j] = static_cast<double>(tokens.position(j)) == at ? 1.0f : 0.0f;
        slot(x.out) = out;
        continue;
      }
      const Values a = operand(x.operand[0], shared);
      if (!program::is_arithmetic(x.op)) {
        visit(x, others++, a, tokens);
        continue;
      }
      const Values b = has_two_operands(x.op) ? operand(x.operand[1], shared) : a;
      const Values c = has_three_operands(x.op) ? operand(x.operand[2], shared) : a;
      dispatch(x.op, Arithmetic<float, kQuad>{a.of, b.of, c.of, out.of});
      slot(x.out) = out;
    }
  }

  const ProgramPass& pass_;
  const unsigned columns_;
  Values* const slots_;
};

// ---- Token segments with reductions, and row segments ----

// A lane's part of a reduction over a row.
union RowPartial {
  double sum;
  Extreme<float> extreme;
};

// Computes the reductions of a token segment. One warp computes one row.
class RowReducer {
 public:
  static int bytes(int reductions) { return reductions * kThreads * static_cast<int>(sizeof(RowPartial)); }

  __device__ __forceinline__ RowReducer(const ProgramPass& pass, unsigned columns)
      : pass_(pass),
        interpreter_(pass, columns),
        partials_(static_cast<RowPartial*>(interpreter_.end_of_slots()) + threadIdx.x) {}

  __device__ __forceinline__ void reduce(const Segment& segment, int64_t row) const {
    for_reductions(segment, [&](const Instruction& x, int n) { clear(x.op, n); });
    const int64_t length = pass_.batch.layout.length(row);
    for (int64_t from = 0; from < length; from += kChunkTokens) {
      interpreter_.run(
          segment, row, from, min(from + kChunkTokens, length),
          [&](const Instruction& x, int n, const Values& values, const LaneTokens& tokens) {
            add(x.op, partial(n), values, tokens);
          },
          [](const LaneTokens&) {});
      for_reductions(segment, [&](const Instruction& x, int n) { fold(x, n, row, from == 0); });
    }
  }

 private:
  __device__ __forceinline__ RowPartial& partial(int n) const { return partials_[n * kThreads]; }

  template <class Visit>
  __device__ __forceinline__ void for_reductions(const Segment& segment, Visit visit) const {
    int n = 0;
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction x = load_instruction(pass_.program, i);
      if (program::is_row_reduction(x.op)) visit(x, n++);
    }
  }

  __device__ __forceinline__ void clear(Op op, int n) const {
    if (is_sum(op))
      partial(n).sum = 0;
    else
      partial(n).extreme = {};
  }

  static __device__ __forceinline__ void add(Op op, RowPartial& to, const Values& values,
                                             const LaneTokens& tokens) {
    if (is_sum(op)) {
      double sum = to.sum;
#pragma unroll
      for (int j = 0; j < kQuad; ++j) sum += tokens.live >> j & 1 ? values.of[j] : 0.0f;
      to.sum = sum;
    } else {
      Extreme<float> extreme = to.extreme;
#pragma unroll
      for (int j = 0; j < kQuad; ++j)
        if (tokens.live >> j & 1)
          extreme.add(is_largest(op), values.of[j], static_cast<int>(tokens.position(j)));
      to.extreme = extreme;
    }
  }

  // Combines the lanes' partial results, after each chunk of the row, and stores the result in the row value.
  __device__ __forceinline__ void fold(const Instruction& x, int n, int64_t row, bool is_first) const {
    double* const to = pass_.row_values + x.out * pass_.batch.layout.rows + row;
    double result;
    if (is_sum(x.op)) {
      result = warp_sum(partial(n).sum);
      partial(n).sum = 0;
      if (threadIdx.x % kWarp == 0 && !is_first) result += *to;
    } else {
      result = result_of(x.op, partial(n).extreme.of_warp(is_largest(x.op)));
    }
    if (threadIdx.x % kWarp == 0) *to = result;
  }

  const ProgramPass& pass_;
  const TokenInterpreter interpreter_;
  RowPartial* const partials_;
};

// Runs the token segments and row segments of a stage.
static __global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor)
    program_rows_kernel(const ProgramPass pass, const Stage stage) {
  const RowReducer reducer(pass, stage.columns);
  const int64_t rows = pass.batch.layout.rows;
  for (int64_t row = first_warp(); row < rows; row += all_warps()) {
    if (state_of_row(pass, row).tokens == 0) continue;
    for (int at = stage.first; at < stage.last; ++at) {
      const Segment segment = pass.program.segments[at];
      if (segment.kind == Op::k_tokens) {
        reducer.reduce(segment, row);
      } else if (threadIdx.x % kWarp == 0) {
        for (int i = segment.first; i < segment.last; ++i) {
          const Instruction x = load_instruction(pass.program, i);
          if (!program::is_rows_reduction(x.op))
            pass.row_values[x.out * rows + row] = compute_one(x, {pass, row});
        }
      }
      __syncwarp();  // the next segment reads the row values on all lanes
    }
  }
}

// ---- Reductions over rows, and batch segments ----

// Computes a reduction over all rows with one warp. Lane 0 gets the result. A row belongs to the lane with
// the number of its index modulo 32, as on the CPU.
__device__ __forceinline__ double reduce_rows(const ProgramPass& pass, const Instruction& x) {
  const bool largest = is_largest(x.op);
  double sum = 0;
  Extreme<double> extreme;
#pragma unroll 4
  for (int64_t row = threadIdx.x % kWarp; row < pass.batch.layout.rows; row += kWarp) {
    if (state_of_row(pass, row).tokens == 0) continue;
    const double value = RowOperands{pass, row}(x.operand[0]);
    sum += value;
    extreme.add(largest, value, static_cast<int>(row));
  }
  sum = warp_sum(sum);
  extreme = extreme.of_warp(largest);
  return is_sum(x.op) ? sum : result_of(x.op, extreme);
}

// Computes the reductions over rows in a stage, and then runs the batch segment that ends the stage. Must be
// launched with one block.
static __global__ void __launch_bounds__(kThreads)
    program_batch_kernel(const ProgramPass pass, const Stage stage) {
  int n = 0;
  for (int at = stage.first; at < stage.last - 1; ++at) {
    const Segment segment = pass.program.segments[at];
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction x = load_instruction(pass.program, i);
      if (!program::is_rows_reduction(x.op) || n++ % kWarps != static_cast<int>(threadIdx.x / kWarp))
        continue;
      const double result = reduce_rows(pass, x);
      if (threadIdx.x % kWarp == 0) pass.batch_values[x.out] = result;
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const Segment segment = pass.program.segments[stage.last - 1];
  for (int i = segment.first; i < segment.last; ++i) {
    const Instruction x = load_instruction(pass.program, i);
    pass.batch_values[x.out] = compute_one(x, {pass, 0});
  }
}

// ---- The last token segment ----

// A thread's sums of the loss (number 0) and of the metrics (from number 1 on).
class OutputSums {
 public:
  static int bytes(int metrics) {
    return (1 + metrics) * kThreads * static_cast<int>(sizeof(double) + sizeof(float));
  }

  __device__ __forceinline__ OutputSums(void* room, int metrics)
      : count_(1 + metrics),
        totals_(static_cast<double*>(room) + threadIdx.x),
        sums_(reinterpret_cast<float*>(static_cast<double*>(room) + count_ * kThreads) + threadIdx.x) {
    for (int k = 0; k < count_; ++k) totals_[k * kThreads] = sums_[k * kThreads] = 0;
  }

  __device__ __forceinline__ void add(int k, const Values& values, unsigned live) const {
    float sum = sums_[k * kThreads];
#pragma unroll
    for (int j = 0; j < kQuad; ++j) sum += live >> j & 1 ? values.of[j] : 0.0f;
    sums_[k * kThreads] = sum;
  }

  // Multiplies the sums over a row's tokens by the row's weights, and adds them to the totals.
  __device__ __forceinline__ void end_row(const RowState<NoRow>& state) const {
    for (int k = 0; k < count_; ++k) {
      totals_[k * kThreads] += sums_[k * kThreads] * (k == 0 ? state.loss_weight : state.repeats);
      sums_[k * kThreads] = 0;
    }
  }

  __device__ __forceinline__ double total(int k) const {
    return k < count_ ? totals_[k * kThreads] : 0.0;
  }

 private:
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

// Runs the last segment of a program. Sums its losses and metrics, and writes the gradients.
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
            if (x.op == Op::k_grad)
              grad = values;
            else
              sums.add(x.op == Op::k_loss ? 0 : 1 + x.out, values, tokens.live);
          },
          end);
      sums.end_row(state);
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
}

}  // namespace policy_loss::cuda

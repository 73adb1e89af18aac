// Runs the token segments of a program (program/program.h).
//
// All lanes of a warp compute the same instruction. A lane computes it for four tokens at once, so that the
// cost of decoding is shared. The lane's tokens are 32 tokens apart. The registers, and the columns that the
// program reads, are in shared memory.
#pragma once

#include "cuda/feed.cuh"
#include "cuda/program_numbers.cuh"
#include "program/draw.h"

namespace policy_loss::cuda {

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

// Returns what an operation that is_of_position() gives for a token.
__device__ __forceinline__ float value_of_position(Op op, double operand, int64_t row, int64_t position) {
  if (op == Op::k_draw) return RowDraws(operand, row).at(static_cast<uint32_t>(position));
  const auto at = static_cast<double>(position);
  const double last = operand - static_cast<double>(row) * program::kPlacesPerRow;
  return (op == Op::k_is_at ? at == operand : at <= last) ? 1.0f : 0.0f;
}

// A number that is the same for all tokens of a row.
struct alignas(16) Uniform {
  double precise;
  float single;

  PL_FN operator float() const { return single; }
};
static_assert(sizeof(Uniform) == sizeof(Values));

// What a compiled segment reads of a lane's four tokens.
struct CompiledTokens {
  const float* columns;  // token j of the column with place c in the set: columns[(c * kQuad + j) * kThreads]
  unsigned column_set;
  LaneTokens tokens;
  int64_t row;
  const Uniform* uniforms;
  const float* scanned;  // number k for the row's token i: scanned[k * stride + i]
  float* kept;           // likewise
  int64_t stride;

  __device__ __forceinline__ bool is_live(int j) const { return (tokens.live >> j & 1) != 0; }
  __device__ __forceinline__ float column(int index, int j) const {
    return columns[(__popc(column_set & (reads(index) - 1u)) * kQuad + j) * kThreads];
  }
  __device__ __forceinline__ float scanned_at(int index, int j) const {
    return is_live(j) ? scanned[index * stride + tokens.position(j)] : 0.0f;
  }
};

// The interpreter of token segments.
class TokenInterpreter {
 public:
  // Where a compiled segment runs, there are at least this many registers.
  static constexpr int kLeastRegisters = 2;

  // Returns how many bytes of shared memory the registers and the columns of a block need.
  static constexpr int bytes(int registers, unsigned columns) {
    return (registers + __builtin_popcount(columns)) * kThreads * static_cast<int>(sizeof(Values));
  }

  __device__ __forceinline__ TokenInterpreter(const ProgramPass& pass, unsigned columns)
      : pass_(pass), columns_(columns), slots_(reinterpret_cast<Values*>(launch_memory())) {}

  // Returns the shared memory after the registers and columns.
  __device__ __forceinline__ void* end_of_slots() const {
    return slots_ + (pass_.program.registers + __popc(columns_)) * kThreads;
  }

  // Returns room for one number per token. Token j of the lane has number j * kThreads. Only compiled
  // segments may use it, because it is the first register.
  __device__ __forceinline__ float* split_slot() const {
    return reinterpret_cast<float*>(slots_) + threadIdx.x;
  }

  // Runs a segment on the tokens [from, to) of a row. Positions count from the row's first token. Calls
  // visit(instruction, n, values, tokens) for each instruction that is not arithmetic; n counts the
  // reductions. Calls end(tokens) after the last instruction. If all tokens of the warp are masked, only
  // end() is called.
  template <class Visit, class End>
  __device__ __forceinline__ void run(const Segment& segment, int64_t row, int64_t from, int64_t to,
                                      Visit visit, End end) const {
    const RowOperands of_row{pass_, row};
    for_stretches(row, from, to, [&](int64_t begin, const LaneTokens& tokens) {
      load_columns(begin, row, tokens);
      if (__reduce_or_sync(kAllLanes, tokens.live) != 0) run_on(segment, of_row, tokens, visit);
      end(tokens);
    });
  }

  // Runs a compiled segment in the same way. Calls compute(tokens) where some tokens are unmasked.
  template <class Compute, class End>
  __device__ __forceinline__ void run_compiled(const Segment& segment, int64_t row, int64_t from, int64_t to,
                                               Compute compute, End end) const {
    CompiledTokens compiled;
    compiled.columns = split_columns();
    compiled.column_set = columns_;
    compiled.row = row;
    compiled.uniforms = load_uniforms(segment, row);
    compiled.scanned = scanned_of_row(pass_, 0, row);
    compiled.kept = kept_of_row(pass_, 0, row);
    compiled.stride = pass_.tokens;
    for_stretches(row, from, to, [&](int64_t begin, const LaneTokens& tokens) {
      compiled.tokens = tokens;
      load_split_columns(begin, row, tokens);
      if (__reduce_or_sync(kAllLanes, tokens.live) != 0) compute(compiled);
      end(tokens);
    });
  }

 private:
  // Calls visit(begin, tokens) for each stretch of the tokens [from, to) of a row, where `begin` is the index
  // of the row's first token.
  template <class Visit>
  __device__ __forceinline__ void for_stretches(int64_t row, int64_t from, int64_t to, Visit visit) const {
    const int64_t begin = pass_.batch.layout.begin(row);
    const bool counts = state_of_row(pass_, row).tokens > 0;
    for (int64_t at = from; at < to; at += kStretch) {
      LaneTokens tokens = find_tokens(begin, at + threadIdx.x % kWarp, to);
      if (!counts) tokens.live = 0;
      visit(begin, tokens);
    }
  }

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

  // Each lane loads one of the numbers that are the same for all tokens of a row. They replace the second
  // register. Returns all of them.
  __device__ __forceinline__ const Uniform* load_uniforms(const Segment& segment, int64_t row) const {
    Uniform* const uniforms = reinterpret_cast<Uniform*>(slots_ + kThreads + threadIdx.x / kWarp * kWarp);
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int index = segment.first_uniform + lane;
    Uniform mine{};
    if (index < segment.last_uniform) mine.precise = RowOperands{pass_, row}(pass_.program.uniforms[index]);
    mine.single = static_cast<float>(mine.precise);
    __syncwarp();  // no lane reads the numbers of the row before any more
    uniforms[lane] = mine;
    __syncwarp();
    return uniforms;
  }

  // Compiled segments read a column's values of one token at a time. So all first tokens of the lanes are
  // next to each other, then all second tokens, and so on.
  __device__ __forceinline__ float* split_columns() const {
    return reinterpret_cast<float*>(slots_ + pass_.program.registers * kThreads) + threadIdx.x;
  }

  __device__ __forceinline__ void load_split_columns(int64_t begin, int64_t row,
                                                     const LaneTokens& tokens) const {
    float* to = split_columns();
    PL_NO_UNROLL
    for (unsigned left = columns_; left != 0; left &= left - 1) {
      const ColumnView& column = pass_.batch.column[__ffs(left) - 1];
      float values[kQuad] = {};
#pragma unroll
      for (int j = 0; j < kQuad; ++j)
        if (tokens.live >> j & 1)
          values[j] = load_one(column, column.per_row ? row : begin + tokens.position(j));
#pragma unroll
      for (int j = 0; j < kQuad; ++j) to[j * kThreads] = values[j];
      to += kQuad * kThreads;
    }
  }

  __device__ __forceinline__ Values load_scanned(int index, int64_t row, const LaneTokens& tokens) const {
    const float* const scanned = scanned_of_row(pass_, index, row);
    Values values{};
#pragma unroll
    for (int j = 0; j < kQuad; ++j)
      if (tokens.live >> j & 1) values.of[j] = scanned[tokens.position(j)];
    return values;
  }

  __device__ __forceinline__ Values operand(const Operand& x, const RowOperands& of_row,
                                            const LaneTokens& tokens) const {
    if (x.kind == Kind::kRegister) return slot(x.index);
    if (x.kind == Kind::kColumn) return slot(slot_of_column(x.index));
    if (x.kind == Kind::kScanned) return load_scanned(x.index, of_row.row, tokens);
    const float value = static_cast<float>(of_row(x));
    return {{value, value, value, value}};
  }

  __device__ __forceinline__ Values values_of_positions(const Instruction& x, const RowOperands& of_row,
                                                        const LaneTokens& tokens) const {
    const double operand = of_row(x.operand[0]);
    Values out;
#pragma unroll
    for (int j = 0; j < kQuad; ++j)
      out.of[j] = value_of_position(x.op, operand, of_row.row, tokens.position(j));
    return out;
  }

  // Runs a segment on the lane's four tokens. The columns must have been loaded.
  template <class Visit>
  __device__ __forceinline__ void run_on(const Segment& segment, const RowOperands& of_row,
                                         const LaneTokens& tokens, Visit visit) const {
    int reductions = 0;
    Instruction next = load_instruction(pass_.program, segment.first);
    for (int i = segment.first; i < segment.last; ++i) {
      const Instruction x = next;
      // The next instruction arrives while this one is computed.
      if (i + 1 < segment.last) next = load_instruction(pass_.program, i + 1);
      Values out;
      if (program::is_of_position(x.op)) {
        slot(x.out) = values_of_positions(x, of_row, tokens);
        continue;
      }
      const Values a = operand(x.operand[0], of_row, tokens);
      if (!program::is_arithmetic(x.op)) {
        visit(x, reductions, a, tokens);
        reductions += program::is_row_reduction(x.op) ? 1 : 0;
        continue;
      }
      const Values b = x.operands > 1 ? operand(x.operand[1], of_row, tokens) : a;
      const Values c = x.operands > 2 ? operand(x.operand[2], of_row, tokens) : a;
      const Values d = x.operands > 3 ? operand(x.operand[3], of_row, tokens) : a;
      dispatch(x.op, Arithmetic<float, kQuad>{a.of, b.of, c.of, d.of, out.of});
      slot(x.out) = out;
    }
  }

  const ProgramPass& pass_;
  const unsigned columns_;
  Values* const slots_;
};

}  // namespace policy_loss::cuda

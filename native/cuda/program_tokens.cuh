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

// The interpreter of token segments.
class TokenInterpreter {
 public:
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

  // Runs a segment on the tokens [from, to) of a row. Positions count from the row's first token. Calls
  // visit(instruction, n, values, tokens) for each instruction that is not arithmetic; n counts these
  // instructions. Calls end(tokens) after the last instruction. If all tokens of the warp are masked, only
  // end() is called.
  template <class Visit, class End>
  __device__ __forceinline__ void run(const Segment& segment, int64_t row, int64_t from, int64_t to,
                                      Visit visit, End end) const {
    const RowOperands of_row{pass_, row};
    const int64_t begin = pass_.batch.layout.begin(row);
    const bool counts = state_of_row(pass_, row).tokens > 0;
    for (int64_t at = from; at < to; at += kStretch) {
      LaneTokens tokens = find_tokens(begin, at + threadIdx.x % kWarp, to);
      if (!counts) tokens.live = 0;
      load_columns(begin, row, tokens);
      if (__reduce_or_sync(kAllLanes, tokens.live) != 0) run_on(segment, of_row, tokens, visit);
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
    const double last = operand - static_cast<double>(of_row.row) * program::kPlacesPerRow;
    const RowDraws draws(operand, of_row.row);
    Values out;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      const auto position = static_cast<double>(tokens.position(j));
      if (x.op == Op::k_draw)
        out.of[j] = draws.at(static_cast<uint32_t>(tokens.position(j)));
      else
        out.of[j] = (x.op == Op::k_is_at ? position == operand : position <= last) ? 1.0f : 0.0f;
    }
    return out;
  }

  // Runs a segment on the lane's four tokens. The columns must have been loaded.
  template <class Visit>
  __device__ __forceinline__ void run_on(const Segment& segment, const RowOperands& of_row,
                                         const LaneTokens& tokens, Visit visit) const {
    int others = 0;
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
        visit(x, others++, a, tokens);
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

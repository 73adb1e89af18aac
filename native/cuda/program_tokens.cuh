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

// The values of a lane's four tokens. A slot in shared memory has those of all threads of a block.
struct alignas(16) Values {
  float of[kQuad];
};
constexpr int kNumbersOfSlot = kQuad * kThreads;

// The four tokens of a lane. They are kWarp tokens apart.
struct LaneTokens {
  int64_t first;   // the position of the first of them in the row
  unsigned exist;  // bit j: token j is one of those to compute
  unsigned live;   // bit j: it is also unmasked

  __device__ __forceinline__ LaneTokens(int64_t first, int64_t to, unsigned live)
      : first(first), exist(0), live(live) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) exist |= static_cast<unsigned>(position(j) < to) << j;
  }

  __device__ __forceinline__ int64_t position(int j) const {
    return first + j * kWarp;
  }
};

// The mask of the lane's four tokens from position `first` on. Only positions before `to` exist.
class MaskOfTokens {
 public:
  __device__ __forceinline__ MaskOfTokens(const uint8_t* mask, int64_t first, int64_t to) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j)
      bytes_[j] = first + j * kWarp < to ? __ldcg(mask + first + j * kWarp) : uint8_t{0};
  }

  // Returns a number whose bit j is set if token j is unmasked. This waits until the mask has been loaded.
  __device__ __forceinline__ unsigned live() const {
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) bits |= static_cast<unsigned>(bytes_[j] != 0) << j;
    return bits;
  }

 private:
  uint8_t bytes_[kQuad];
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
};
static_assert(sizeof(Uniform) == sizeof(Values));

// What a compiled segment reads of a lane's four tokens.
struct CompiledTokens {
  // Token j of the column with place c in the set is columns[c * kNumbersOfSlot + j * kWarp].
  const float* columns;
  unsigned column_set;
  LaneTokens tokens;
  int64_t row;
  const Uniform* uniforms;
  float* scanned;   // number k for the row's token i: scanned[k * stride + i]
  float* gathered;  // likewise
  int64_t stride;

  __device__ __forceinline__ bool is_live(int j) const { return (tokens.live >> j & 1) != 0; }
  __device__ __forceinline__ float column(int index, int j) const {
    return columns[__popc(column_set & (reads(index) - 1u)) * kNumbersOfSlot + j * kWarp];
  }
  __device__ __forceinline__ float scanned_at(int index, int j) const {
    return is_live(j) ? scanned[index * stride + tokens.position(j)] : 0.0f;
  }
};

// The interpreter of token segments.
class TokenInterpreter {
 public:
  // Returns how many bytes of shared memory the values of a block need.
  static constexpr int bytes(int registers, unsigned columns) {
    return slots(registers, __builtin_popcount(columns)) * kThreads * static_cast<int>(sizeof(Values));
  }

  __device__ __forceinline__ TokenInterpreter(const ProgramPass& pass, unsigned columns)
      : pass_(pass), columns_(columns), slots_(reinterpret_cast<Values*>(launch_memory())) {}

  // Returns the shared memory after the values.
  __device__ __forceinline__ void* end_of_slots() const {
    return slots_ + slots(pass_.program.registers, __popc(columns_)) * kThreads;
  }

  // Returns room for one number per token, for compiled segments. Token j of the lane has number j * kWarp.
  __device__ __forceinline__ float* numbers_of_tokens() const { return numbers_in(kNumbers); }

  // Runs a segment on the tokens [from, to) of a row. Positions count from the row's first token. Calls
  // visit(instruction, n, values, tokens) for each instruction that is not arithmetic; n counts the
  // reductions. Calls end(tokens) after the last instruction. If all tokens of the warp are masked, only
  // end() is called.
  template <class Visit, class End>
  __device__ __forceinline__ void run(const Segment& segment, int64_t row, int64_t from, int64_t to,
                                      Visit visit, End end) const {
    const RowOperands of_row{pass_, row};
    const int64_t begin = pass_.batch.layout.begin(row);
    const bool counts = state_of_row(pass_, row).tokens > 0;
    for (int64_t at = from; at < to; at += kTile) {
      const int64_t first = at + threadIdx.x % kWarp;
      const MaskOfTokens mask(pass_.batch.mask + begin, first, to);
      const LaneTokens tokens(first, to, counts ? mask.live() : 0);
      load_columns(begin, row, tokens);
      if (__reduce_or_sync(kAllLanes, tokens.live) != 0) run_on(segment, of_row, tokens, visit);
      end(tokens);
    }
  }

  // Runs a compiled segment in the same way. Calls compute(tokens) where some tokens are unmasked. While
  // tokens are computed, the columns of the next ones and the mask of those after them are loaded.
  template <class Compute, class End>
  __device__ __forceinline__ void run_compiled(const Segment& segment, int64_t row, int64_t from, int64_t to,
                                               Compute compute, End end) const {
    const Uniform* const uniforms = load_uniforms(segment, row);
    float* const scanned = scanned_of_row(pass_, 0, row);
    float* const gathered = gathered_of_row(pass_, 0, row);
    const int64_t stride = pass_.tokens;
    const int64_t begin = pass_.batch.layout.begin(row);
    const uint8_t* const mask = pass_.batch.mask + begin;
    const bool counts = state_of_row(pass_, row).tokens > 0;
    const int64_t first = from + threadIdx.x % kWarp;
    const MaskOfTokens first_mask(mask, first, to), second_mask(mask, first + kTile, to);
    unsigned live = counts ? first_mask.live() : 0;
    unsigned next_live = counts ? second_mask.live() : 0;
    start_columns(begin, row, {first, to, live}, split_columns(0));
    __pipeline_commit();
    int half = 0;
    for (int64_t at = first; at - first < to - from; at += kTile) {
      const MaskOfTokens later_mask(mask, at + 2 * kTile, to);
      start_columns(begin, row, {at + kTile, to, next_live}, split_columns(1 - half));
      __pipeline_commit();
      __pipeline_wait_prior(1);
      const LaneTokens tokens(at, to, live);
      if (__reduce_or_sync(kAllLanes, live) != 0)
        compute(
            CompiledTokens{split_columns(half), columns_, tokens, row, uniforms, scanned, gathered, stride});
      end(tokens);
      half = 1 - half;
      live = next_live;
      next_live = counts ? later_mask.live() : 0;
    }
  }

 private:
  // Compiled segments need room for a number per token, for uniform numbers, and for the columns of two
  // tiles.
  static constexpr int kNumbers = 0, kUniforms = 1, kSplitColumns = 2;

  // Returns how many Values a thread needs. Interpreted and compiled segments use the same memory.
  static PL_FN constexpr int slots(int registers, int columns) {
    const int interpreted = registers + columns, compiled = kSplitColumns + 2 * columns;
    return interpreted > compiled ? interpreted : compiled;
  }

  __device__ __forceinline__ Values& slot(int index) const { return slots_[index * kThreads + threadIdx.x]; }
  __device__ __forceinline__ int slot_of_column(unsigned column) const {
    return pass_.program.registers + __popc(columns_ & (reads(column) - 1u));
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

  // Each lane loads one of the numbers that are the same for all tokens of a row. Returns all of them.
  __device__ __forceinline__ const Uniform* load_uniforms(const Segment& segment, int64_t row) const {
    Uniform* const uniforms =
        reinterpret_cast<Uniform*>(slots_ + kUniforms * kThreads + threadIdx.x / kWarp * kWarp);
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

  // Returns where the numbers of a slot are for a compiled segment. It reads the numbers of one token at a
  // time. So all first tokens of the lanes are next to each other, then all second tokens, and so on. A warp
  // uses only its own part of a slot, because other warps may interpret a segment at the same time.
  __device__ __forceinline__ float* numbers_in(int slot) const {
    const unsigned thread = threadIdx.x;
    return reinterpret_cast<float*>(slots_ + slot * kThreads + thread / kWarp * kWarp) + thread % kWarp;
  }
  // Returns the first of the slots with the columns of a tile.
  __device__ __forceinline__ float* split_columns(int half) const {
    return numbers_in(kSplitColumns + half * __popc(columns_));
  }

  // Starts to load the columns of the unmasked tokens. Only the lane itself reads them.
  __device__ __forceinline__ void start_columns(int64_t begin, int64_t row, const LaneTokens& tokens,
                                                float* to) const {
    PL_NO_UNROLL
    for (unsigned left = columns_; left != 0; left &= left - 1) {
      const ColumnView& column = pass_.batch.column[__ffs(static_cast<int>(left)) - 1];
      if (column.dtype == DType::kFloat32 && !column.per_row) {
        const float* const values = static_cast<const float*>(column.data) + begin;
#pragma unroll
        for (int j = 0; j < kQuad; ++j)
          if (tokens.live >> j & 1)
            __pipeline_memcpy_async(to + j * kWarp, values + tokens.position(j), sizeof(float));
      } else {
        float values[kQuad] = {};
#pragma unroll
        for (int j = 0; j < kQuad; ++j)
          if (tokens.live >> j & 1)
            values[j] = load_one(column, column.per_row ? row : begin + tokens.position(j));
#pragma unroll
        for (int j = 0; j < kQuad; ++j) to[j * kWarp] = values[j];
      }
      to += kNumbersOfSlot;
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

// The kernels for the segments of a program (program/program.h) that compute rows: token segments with
// reductions and scans, and row segments.
//
// A lane computes the tokens whose position in the row, modulo 32, is its number. So the lanes' partial sums
// are those of the CPU engine, and they are added up in the same order.
//
// Usually one warp computes a row. If a batch has few, long rows, that would leave most of the GPU idle. Then
// all warps compute tiles of kSumTokens tokens, and another launch combines the tiles of each row.
#pragma once

#include "cuda/program_compiled.cuh"
#include "cuda/program_scans.cuh"
#include "cuda/program_select.cuh"
#include "cuda/tiles.cuh"

namespace policy_loss::cuda {

// Returns a sum plus the values of a lane's unmasked tokens.
__device__ __forceinline__ float added(float sum, const Values& values, unsigned live) {
#pragma unroll
  for (int j = 0; j < kQuad; ++j) sum += live >> j & 1 ? values.of[j] : 0.0f;
  return sum;
}

// Returns whether a reduction adds up numbers. row_gather counts the values.
PL_FN bool is_total(Op op) {
  return program::is_sum(op) || op == Op::k_row_gather;
}

__device__ __forceinline__ double* row_value_of(const ProgramPass& pass, int index, int64_t row) {
  return pass.row_values + index * pass.batch.layout.rows + row;
}

// Calls visit(instruction, n) for each reduction of a segment; n counts the reductions.
template <class Visit>
__device__ __forceinline__ void for_reductions(const ProgramPass& pass, const Segment& segment, Visit visit) {
  int n = 0;
  for (int i = segment.first; i < segment.last; ++i) {
    const Instruction x = load_instruction(pass.program, i);
    if (program::is_row_reduction(x.op)) visit(x, n++);
  }
}

// Computes the reductions of a token segment, and stores the operands of its scans. One warp computes a row,
// or a tile of it.
class RowReducer {
 public:
  // Returns how many bytes of shared memory the partial results of a block need.
  static constexpr int bytes(int reductions) {
    return reductions * kThreads * static_cast<int>(sizeof(Partial));
  }

  __device__ __forceinline__ RowReducer(const ProgramPass& pass, unsigned columns)
      : pass_(pass),
        interpreter_(pass, columns),
        partials_(static_cast<Partial*>(interpreter_.end_of_slots()) + threadIdx.x) {}

  // Computes the tokens [from, to) of a row. If that is a tile, stores its partial results as number
  // `index`. If it is the whole row, stores the row values that the segment writes; `index` is then −1.
  __device__ __forceinline__ void reduce(const Segment& segment, int64_t row, int64_t from, int64_t to,
                                         int64_t index) const {
    for_reductions(pass_, segment, [&](const Instruction& x, int n) { clear(x.op, n); });
    // A row without tokens has one tile too, because its reductions have results.
    do {
      add_tile(segment, row, from);
      for_reductions(pass_, segment, [&](const Instruction& x, int n) {
        if (index < 0)
          fold(x, n, row, from == 0);
        else
          store_tile(x.op, n, index);
      });
      from += kSumTokens;
    } while (from < to);
  }

 private:
  __device__ __forceinline__ Partial& partial(int n) const { return partials_[n * kThreads]; }

  // Adds a tile of a row to the lanes' partial results.
  __device__ __forceinline__ void add_tile(const Segment& segment, int64_t row, int64_t from) const {
    const int64_t to = min(from + kSumTokens, static_cast<int64_t>(pass_.batch.layout.length(row)));
    const auto end = [](const LaneTokens&) {};
    if (segment.compiled >= 0) {
      int gathered = 0;
      for_reductions(pass_, segment, [&](const Instruction& x, int n) {
        if (n == static_cast<int>(threadIdx.x % kWarp)) gathered = x.out;
      });
      interpreter_.run_compiled(
          segment, row, from, to,
          [&](const CompiledTokens& tokens) {
            compute_reductions(segment.compiled, tokens, partials_, gathered);
          },
          end);
      return;
    }
    interpreter_.run(
        segment, row, from, to,
        [&](const Instruction& x, int n, const Values& values, const LaneTokens& tokens) {
          if (program::is_scan(x.op)) {
            store(scanned_of_row(pass_, x.out, row), values, tokens);
          } else {
            if (x.op == Op::k_row_gather) store(gathered_of_row(pass_, x.out, row), values, tokens);
            add(x.op, partial(n), values, tokens);
          }
        },
        end);
  }

  // Stores the operands of a scan, or of row_gather.
  static __device__ __forceinline__ void store(float* to, const Values& values, const LaneTokens& tokens) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j)
      if (tokens.live >> j & 1) to[tokens.position(j)] = values.of[j];
  }

  __device__ __forceinline__ void clear(Op op, int n) const {
    if (op == Op::k_row_sum_single)
      partial(n).single = 0;
    else if (is_total(op))
      partial(n).sum = 0;
    else
      partial(n).extreme = {};
  }

  static __device__ __forceinline__ void add(Op op, Partial& to, const Values& values,
                                             const LaneTokens& tokens) {
    if (op == Op::k_row_gather) {
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

  // Combines the lanes' partial results. Only lane 0 gets the result.
  __device__ __forceinline__ Partial of_lanes(Op op, int n) const {
    Partial all{0.0};
    if (op == Op::k_row_sum_single)
      all.sum = static_cast<double>(warp_sum(partial(n).single));
    else if (is_total(op))
      all.sum = warp_sum(partial(n).sum);
    else
      all.extreme = partial(n).extreme.of_warp(program::is_largest(op));
    return all;
  }

  // Combines the lanes' partial results after a tile of the row. Stores the result for all tiles so far in
  // the row value.
  __device__ __forceinline__ void fold(const Instruction& x, int n, int64_t row, bool is_first) const {
    double* const to = row_value_of(pass_, x.out, row);
    const Partial all = of_lanes(x.op, n);
    const bool adds = is_total(x.op);
    if (adds) clear(x.op, n);
    if (threadIdx.x % kWarp != 0) return;
    if (!adds)
      *to = result_of(x.op, all.extreme);
    else
      *to = is_first ? all.sum : all.sum + *to;
  }

  __device__ __forceinline__ void store_tile(Op op, int n, int64_t index) const {
    const Partial all = of_lanes(op, n);
    if (threadIdx.x % kWarp == 0) pass_.tiles[n * pass_.tile_count + index] = all;
  }

  const ProgramPass& pass_;
  const TokenInterpreter interpreter_;
  Partial* const partials_;
};

// Adds up the sums of a row's tiles in their order. The lanes of a warp load 32 at once, and all of them
// compute the same sum.
__device__ __forceinline__ double sum_in_order(const Partial* tiles, int64_t count) {
  const int lane = threadIdx.x % kWarp;
  double sum = 0;
  for (int64_t from = 0; from < count; from += kWarp) {
    const double mine = from + lane < count ? tiles[from + lane].sum : 0.0;
    const int loaded = static_cast<int>(min(count - from, static_cast<int64_t>(kWarp)));
    for (int k = 0; k < loaded; ++k) {
      const double next = __shfl_sync(kAllLanes, mine, k);
      sum = from + k == 0 ? next : next + sum;
    }
  }
  return sum;
}

// Computes the row values that a segment writes from the tiles of a row, with one warp.
__device__ __forceinline__ void join_tiles(const ProgramPass& pass, const Segment& segment, int64_t row) {
  const Layout& layout = pass.batch.layout;
  const int lane = threadIdx.x % kWarp;
  const int64_t count = max((layout.length(row) + kSumTokens - 1) / kSumTokens, int64_t{1});
  for_reductions(pass, segment, [&](const Instruction& x, int n) {
    const Partial* const tiles = pass.tiles + n * pass.tile_count + first_tile<kSumTokens>(layout, row);
    double result;
    if (is_total(x.op)) {
      result = sum_in_order(tiles, count);
    } else {
      const bool largest = program::is_largest(x.op);
      Extreme<float> extreme;
      for (int64_t k = lane; k < count; k += kWarp)
        extreme.add(largest, tiles[k].extreme.value, tiles[k].extreme.position);
      result = result_of(x.op, extreme.of_warp(largest));
    }
    if (lane == 0) *row_value_of(pass, x.out, row) = result;
  });
}

// Replaces the operands of a segment's scans, which were stored, with the results. One warp computes a row.
__device__ __forceinline__ void scan_row(const ProgramPass& pass, const Segment& segment, int64_t row) {
  __syncwarp();  // a lane reads operands that other lanes stored
  const Layout& layout = pass.batch.layout;
  for (int i = segment.first; i < segment.last; ++i) {
    const Instruction x = load_instruction(pass.program, i);
    if (!program::is_scan(x.op)) continue;
    const ScannedRow scanned{scanned_of_row(pass, x.out, row), pass.batch.mask + layout.begin(row),
                             layout.length(row)};
    const double decay = x.operands > 1 ? RowOperands{pass, row}(x.operand[1]) : 0.0;
    if (x.op == Op::k_token_rank)
      rank_tokens(scanned, pass.sorted + layout.begin(row), pass.sorted + pass.tokens + layout.begin(row));
    else
      scan(x.op, decay, scanned);
  }
}

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
    if (is_first_lane) *row_value_of(pass, x.out, row) = result;
  }
}

// Runs the token segments and row segments of a range, or computes the tiles of all rows for its token
// segment. One warp computes a row, or a tile of it.
static __global__ void __launch_bounds__(kThreads, kFedBlocksPerMultiprocessor)
    program_rows_kernel(const ProgramPass pass, const SegmentRange range) {
  const Layout& layout = pass.batch.layout;
  const RowReducer reducer(pass, range.columns);
  const bool is_of_tiles = range.work == SegmentRange::kTiles;
  const int64_t count = is_of_tiles ? pass.tile_count : layout.rows;
  for (int64_t index = first_warp(); index < count; index += all_warps()) {
    int64_t row = index, from = 0;
    if (is_of_tiles) {
      row = row_of_tile<kSumTokens>(layout, index);
      from = (index - first_tile<kSumTokens>(layout, row)) * kSumTokens;
      if (from > 0 && from >= layout.length(row)) continue;
    }
    if (!takes_part(pass, row)) continue;
    for (int at = range.first; at < range.last; ++at) {
      const Segment segment = load_segment(pass.program, at);
      if (segment.kind == Op::k_row) {
        run_row(pass, segment, row);
      } else {
        if (range.work == SegmentRange::kJoin)
          join_tiles(pass, segment, row);
        else
          reducer.reduce(segment, row, from, is_of_tiles ? from : layout.length(row),
                         is_of_tiles ? index : -1);
        if (segment.scans > 0 && !is_of_tiles) scan_row(pass, segment, row);
      }
      __syncwarp();  // the next segment reads the row values on all lanes
    }
  }
}

}  // namespace policy_loss::cuda

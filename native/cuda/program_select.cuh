// The selections of programs (program/program.h) among the values that they keep.
//
// A selection over all rows takes one launch per digit of the key (program/select.h). In each launch, all
// blocks count the values by that digit, and the last block to finish chooses the digit. The counts are
// integers, so they do not depend on the order in which blocks add them up.
#pragma once

#include "cuda/feed.cuh"
#include "cuda/program_numbers.cuh"
#include "program/select.h"

namespace policy_loss::cuda {

// The state of a selection over all rows between its launches.
struct Selection {
  Search search;
  Bin bins[kMaxBins];  // all 0 between launches
};

// Returns how many bytes of dynamic shared memory the kernel for a digit needs.
constexpr int kSelectBytes = kMaxBins * static_cast<int>(sizeof(Bin));

// Visits the gathered values of a row. All lanes of a warp call visit(is_gathered, position, key) at the same
// time; a lane visits the positions that equal its number modulo 32. Several values are loaded at once.
template <int at_once, class Visit>
__device__ __forceinline__ void for_gathered(const ProgramPass& pass, int gathered, int64_t row,
                                             Visit visit) {
  const int64_t begin = pass.batch.layout.begin(row), length = pass.batch.layout.length(row);
  const float* const values = gathered_of_row(pass, gathered, row);
  if (!(state_of_row(pass, row).tokens > 0)) return;
  for (int64_t from = 0; from < length; from += at_once * kWarp) {
    const int64_t first = from + threadIdx.x % kWarp;
    bool is_gathered[at_once];
    float value[at_once];
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const int64_t at = first + k * kWarp;
      is_gathered[k] = at < length && __ldcg(pass.batch.mask + begin + at) != 0;
      value[k] = at < length ? __ldcg(values + at) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < at_once; ++k) visit(is_gathered[k], first + k * kWarp, key_of(value[k]));
  }
}

// Returns the value with a rank among those that a row keeps. All lanes of a warp must call this, with the
// same arguments. It finds one bit of the key after another.
__device__ __forceinline__ double rank_in_row(const ProgramPass& pass, int gathered, int64_t row,
                                              double rank) {
  const double n = state_of_row(pass, row).tokens;
  if (!(n > 0)) return 0;
  double left = rank >= 0 ? round_down(rank) : 0.0;
  if (left > n - 1) left = n - 1;
  uint32_t key = 0;
  for (int bit = 31; bit >= 0; --bit) {
    unsigned below = 0;
    for_gathered<8>(pass, gathered, row, [&](bool is_gathered, int64_t, uint32_t other) {
      below += is_gathered && other >> bit == key >> bit ? 1 : 0;
    });
    below = __reduce_add_sync(kAllLanes, below);
    if (left < below) continue;
    left -= below;
    key |= 1u << bit;
  }
  return static_cast<double>(value_of(key));
}

// Returns an operand in the first row that takes part, or 0 if there is none.
__device__ __forceinline__ double of_first_row(const ProgramPass& pass, const Operand& operand) {
  for (int64_t row = 0; row < pass.batch.layout.rows; ++row)
    if (takes_part(pass, row)) return RowOperands{pass, row}(operand);
  return 0;
}

__device__ __forceinline__ void add_to_bin(Bin* bin, uint64_t count, uint64_t significands) {
  atomicAdd(reinterpret_cast<unsigned long long*>(&bin->count), static_cast<unsigned long long>(count));
  atomicAdd(reinterpret_cast<unsigned long long*>(&bin->significands),
            static_cast<unsigned long long>(significands));
}

// Counts the values of a warp's lanes in the bins of a block. The lanes with the same bin add to it together,
// because many values of a batch have the same first digit. All lanes of a warp must call this.
__device__ __forceinline__ void count_values(const Digit& digit, bool is_gathered, uint32_t key,
                                             uint64_t repeats, Bin* bins) {
  const bool counts = is_gathered && digit.includes(key);
  const unsigned bin = counts ? digit.bin_of(key) : ~0u;
  const unsigned significand = counts ? significand_of(key) : 0;
  unsigned left = __ballot_sync(kAllLanes, counts);
  while (left != 0) {
    const int leader = __ffs(static_cast<int>(left)) - 1;
    const bool is_same = bin == __shfl_sync(kAllLanes, bin, leader);
    const unsigned same = __ballot_sync(kAllLanes, is_same);
    const unsigned sum = __reduce_add_sync(kAllLanes, is_same ? significand : 0u);
    if (static_cast<int>(threadIdx.x % kWarp) == leader)
      add_to_bin(bins + bin, repeats * static_cast<unsigned>(__popc(same)), repeats * sum);
    left &= ~same;
  }
}

// Finds the next digit of a selection over all rows, and stores the result after the last digit.
static __global__ void __launch_bounds__(kThreads)
    program_select_kernel(const ProgramPass pass, int at, int digit) {
  Bin* const bins = reinterpret_cast<Bin*>(launch_memory());
  const Instruction x = load_instruction(pass.program, at);
  Selection* const selection = pass.selection;
  const Search search = digit == 0 ? Search(x.op, 0) : selection->search;
  if (search.is_done()) return;
  const Digit wanted = search.digit();
  for (int b = threadIdx.x; b < kMaxBins; b += kThreads) bins[b] = {0, 0};
  __syncthreads();
  for (int64_t row = first_warp(); row < pass.batch.layout.rows; row += all_warps()) {
    const uint64_t repeats = state_of_row(pass, row).repeats;
    if (repeats == 0) continue;
    for_gathered<4>(pass, x.operand[0].index, row, [&](bool is_gathered, int64_t, uint32_t key) {
      count_values(wanted, is_gathered, key, repeats, bins);
    });
  }
  __syncthreads();
  for (int b = threadIdx.x; b < kMaxBins; b += kThreads)
    if (bins[b].count > 0) add_to_bin(selection->bins + b, bins[b].count, bins[b].significands);
  if (!is_last_block(&pass.totals->token_ticket)) return;
  for (int b = threadIdx.x; b < kMaxBins; b += kThreads) {
    bins[b] = {__ldcg(&selection->bins[b].count), __ldcg(&selection->bins[b].significands)};
    selection->bins[b] = {0, 0};
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  Search next = digit == 0 ? Search(x.op, of_first_row(pass, x.operand[1])) : search;
  next.choose(bins);
  selection->search = next;
  if (next.is_done()) pass.batch_values[x.out] = next.result();
}

// Returns the place of the token with the rank that was searched, or −1 if there are no tokens. All lanes of
// a warp must call this. pass.ties must hold how many tokens of each row have the value with the rank.
__device__ __forceinline__ double place_of(const ProgramPass& pass, int gathered, const Search& search) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  double left = search.rank_among_ties();
  if (left < 0) return -1;
  // The lanes count the ties of 32 rows at once.
  for (int64_t first_row = 0; first_row < pass.batch.layout.rows; first_row += kWarp) {
    const bool exists = first_row + lane < pass.batch.layout.rows;
    const double repeats_of_lane = exists ? state_of_row(pass, first_row + lane).repeats : 0u;
    const double count = exists ? repeats_of_lane * __ldcg(pass.ties + first_row + lane) : 0.0;
    double up_to = count;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const double before = __shfl_up_sync(kAllLanes, up_to, static_cast<unsigned>(distance));
      if (lane >= distance) up_to += before;
    }
    const unsigned has_place = __ballot_sync(kAllLanes, left < up_to);
    if (has_place == 0) {
      left -= __shfl_sync(kAllLanes, up_to, kWarp - 1);
      continue;
    }
    const int found_lane = __ffs(static_cast<int>(has_place)) - 1;
    const int64_t row = first_row + found_lane;
    const double repeats = __shfl_sync(kAllLanes, repeats_of_lane, found_lane);
    left -= __shfl_sync(kAllLanes, up_to - count, found_lane);
    const int64_t begin = pass.batch.layout.begin(row), length = pass.batch.layout.length(row);
    const float* const values = gathered_of_row(pass, gathered, row);
    for (int64_t first = 0; first < length; first += kWarp) {
      const int64_t at = first + lane;
      const bool is_tie =
          at < length && __ldcg(pass.batch.mask + begin + at) != 0 && key_of(values[at]) == search.key();
      unsigned found = __ballot_sync(kAllLanes, is_tie);
      for (; found != 0; found &= found - 1) {
        left -= repeats;
        if (left < 0)
          return static_cast<double>(row) * program::kPlacesPerRow +
                 static_cast<double>(first + (31 - __clz(found & (0u - found))));
      }
    }
  }
  return -1;
}

// Finds the result of rows_rank_at, after the launches for all digits.
static __global__ void __launch_bounds__(kThreads) program_place_kernel(const ProgramPass pass, int at) {
  const Instruction x = load_instruction(pass.program, at);
  const Search search = pass.selection->search;
  const int gathered = x.operand[0].index;
  for (int64_t row = first_warp(); row < pass.batch.layout.rows; row += all_warps()) {
    unsigned ties = 0;
    for_gathered<8>(pass, gathered, row, [&](bool is_gathered, int64_t, uint32_t key) {
      ties += is_gathered && key == search.key() ? 1 : 0;
    });
    ties = __reduce_add_sync(kAllLanes, ties);
    if (threadIdx.x % kWarp == 0) pass.ties[row] = ties;
  }
  if (!is_last_block(&pass.totals->token_ticket) || threadIdx.x >= kWarp) return;
  const double place = place_of(pass, gathered, search);
  if (threadIdx.x == 0) pass.batch_values[x.out] = place;
}

}  // namespace policy_loss::cuda

// Computes the scans of a program along a row (program/program.h), with one warp per row. The rounds are
// those of the CPU engine, so the sums have the same bits.
#pragma once

#include "cuda/program_numbers.cuh"
#include "program/select.h"

namespace policy_loss::cuda {

// The scanned values of a row's tokens, and the row's mask.
struct ScannedRow {
  float* values;
  const uint8_t* mask;
  int64_t length;

  __device__ __forceinline__ bool is_live(int64_t token) const {
    return token >= 0 && token < length && mask[token] != 0;
  }
};

// Visits the tokens of a row in tiles of one token per lane, from the first token on or from the last one.
// Calls visit(value, token) for each tile, where the value of a masked token is 0. Some tokens of the last
// tile may not exist. Stores the number that visit() returns for the lane's token. A tile is loaded while the
// tile before it is computed.
template <class Visit>
__device__ __forceinline__ void replace_tokens(const ScannedRow& row, bool forwards, Visit visit) {
  float next = 0;
  bool next_is_live = false;
  const auto token_at = [&](int64_t at) { return forwards ? at : row.length - 1 - at; };
  const auto load_next = [&](int64_t at) {
    next_is_live = row.is_live(token_at(at));
    next = at < row.length ? row.values[token_at(at)] : 0.0f;
  };
  int64_t at = threadIdx.x % kWarp;
  load_next(at);
  for (int64_t from = 0; from < row.length; from += kWarp, at += kWarp) {
    const float value = next_is_live ? next : 0.0f;
    load_next(at + kWarp);
    const float result = visit(value, token_at(at));
    if (at < row.length) row.values[token_at(at)] = result;
  }
  __syncwarp();  // the lanes may read the values of other lanes' tokens next
}

// Returns the first lane of a set, or a number that is larger than any lane if the set is empty.
__device__ __forceinline__ unsigned first_of(unsigned lanes) {
  return static_cast<unsigned>(__ffs(lanes)) - 1u;
}

// Replaces the values with their running sums.
__device__ __forceinline__ void running_sum(const ScannedRow& row, double decay, bool forwards) {
  constexpr int kRounds = program::kWindowRounds;
  constexpr unsigned kWindow = 1u << kRounds;
  static_assert(kWarp % kWindow == 0);
  const unsigned lane = threadIdx.x % kWarp;
  double before[kRounds] = {};  // the number that each round got for the lane's token in the tile before
  double sum = 0;
  replace_tokens(row, forwards, [&](float value, int64_t) {
    double x = static_cast<double>(value);
    double power = decay;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const unsigned distance = 1u << round;
      // The last lanes pass on numbers of the tile before, to the first lanes.
      const double passed = lane >= kWarp - distance ? before[round] : x;
      before[round] = x;
      x += power * __shfl_sync(kAllLanes, passed, (lane - distance) % kWarp);
      power *= power;
    }
    // The running sums of the first lanes depend on those of the tile before, and those of others on theirs.
    for (unsigned first = 0; first < kWarp; first += kWindow) {
      const double earlier = __shfl_sync(kAllLanes, sum, (lane - kWindow) % kWarp);
      if (lane / kWindow == first / kWindow) sum = x + power * earlier;
    }
    return static_cast<float>(sum);
  });
}

// Replaces the value of each unmasked token with the sum over its turn: the contiguous unmasked tokens around
// it.
__device__ __forceinline__ void sum_turns(const ScannedRow& row) {
  const unsigned lane = threadIdx.x % kWarp;
  // Gives the last token of each turn the turn's sum.
  double partial = 0;
  replace_tokens(row, true, [&](float value, int64_t token) {
    const bool live = row.is_live(token);
    unsigned ends = __ballot_sync(kAllLanes, live && !row.is_live(token + 1));
    partial += live && lane <= first_of(ends) ? static_cast<double>(value) : 0.0;
    double own = 0;
    while (ends != 0) {
      const unsigned end = first_of(ends);
      const double sum = warp_sum(partial);  // of lane 0
      const double of_turn = __shfl_sync(kAllLanes, sum, 0);
      if (lane == end) own = of_turn;
      ends &= ends - 1;
      partial = live && lane > end && lane <= first_of(ends) ? static_cast<double>(value) : 0.0;
    }
    return static_cast<float>(own);
  });
  // Backwards, passes it on to the other tokens of the turn.
  float total = 0;
  bool in_turn = false;
  replace_tokens(row, false, [&](float value, int64_t token) {
    const unsigned all = __ballot_sync(kAllLanes, row.is_live(token));
    const unsigned masked_before = ~all & ((1u << lane) - 1);
    const int last = masked_before != 0 ? kWarp - __clz(masked_before) : 0;  // of the turn, in this tile
    float of_turn = __shfl_sync(kAllLanes, value, last);
    if (last == 0 && in_turn) of_turn = total;
    const float own = row.is_live(token) ? of_turn : 0.0f;
    total = __shfl_sync(kAllLanes, own, kWarp - 1);
    in_turn = all >> (kWarp - 1) != 0;
    return own;
  });
}

// Replaces the values with their ranks. The unmasked tokens are sorted by one bit of their keys after
// another, from the lowest on, and equal bits keep the order. `from` and `to` have room for one position per
// token.
__device__ __forceinline__ void rank_tokens(const ScannedRow& row, unsigned* from, unsigned* to) {
  constexpr int kBits = 32;
  static_assert(kBits % 2 == 0, "the last round writes to the array from which the first one reads");
  const unsigned lane = threadIdx.x % kWarp, lanes_before = (1u << lane) - 1u;
  int64_t count = 0;
  for (int64_t first = 0; first < row.length; first += kWarp) {
    const bool is_live = row.is_live(first + lane);
    const unsigned live = __ballot_sync(kAllLanes, is_live);
    if (is_live) from[count + __popc(live & lanes_before)] = static_cast<unsigned>(first + lane);
    count += __popc(live);
  }
  for (int bit = 0; bit < kBits; ++bit) {
    __syncwarp();  // a lane reads positions that other lanes stored
    const auto has_bit = [&](int64_t at) { return (key_of(row.values[from[at]]) >> bit & 1u) != 0; };
    int64_t next_zero = 0, next_one = 0;
    for (int64_t first = 0; first < count; first += kWarp)
      next_one += __popc(__ballot_sync(kAllLanes, first + lane < count && !has_bit(first + lane)));
    for (int64_t first = 0; first < count; first += kWarp) {
      const bool exists = first + lane < count, is_one = exists && has_bit(first + lane);
      const unsigned ones = __ballot_sync(kAllLanes, is_one);
      const unsigned zeros = __ballot_sync(kAllLanes, exists && !is_one);
      const int64_t at =
          is_one ? next_one + __popc(ones & lanes_before) : next_zero + __popc(zeros & lanes_before);
      if (exists) to[at] = from[first + lane];
      next_one += __popc(ones);
      next_zero += __popc(zeros);
    }
    unsigned* const sorted = to;
    to = from;
    from = sorted;
  }
  __syncwarp();
  for (int64_t rank = lane; rank < count; rank += kWarp) row.values[from[rank]] = static_cast<float>(rank);
  __syncwarp();
}

__device__ __forceinline__ void scan(Op op, double decay, const ScannedRow& row) {
  if (op == Op::k_turn_sum)
    sum_turns(row);
  else
    running_sum(row, decay, op == Op::k_prefix_sum);
}

}  // namespace policy_loss::cuda

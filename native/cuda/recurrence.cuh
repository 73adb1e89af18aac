// The kernels of recurrences (advantage/recurrence.h), which compute x_t = term_t + decay·x_{t+1}. They go
// through each row from its end, in float64.
//
// A warp computes a tile of 128 tokens at once. The x at the start of a tile is the discounted sum of
// the tile's own terms, plus a power of decay times the x after the tile. The tiles of a row are
// combined from the last to the first, so the results have the same bits on every run and on every device.
//
// The kernel in this file lets a team of warps compute one row at a time. If rows are too few and too long
// for that, the kernels of long_rows.cuh compute their tiles at once, with the same operations.
//
// A function that skips masked tokens has the decay 1 and the term 0 there. Its team is always one warp.
#pragma once

#include "cuda/finite.cuh"
#include "cuda/tiles.cuh"
#include "cuda/whitening.cuh"
#include "engine/advantage_registry.h"

namespace policy_loss::cuda {

// The number of blocks of these kernels that run on a multiprocessor at once. With this many, each block has
// the registers for a tile and the one that it loads meanwhile.
constexpr int kRecurrenceBlocks = 5;

// The products of the decays of several tokens that a lane needs to compute a tile.
struct DecayPowers {
  double of_lanes[5];  // of the quads of 1, 2, 4, 8 and 16 lanes, of which this lane is the first
  double to_end;       // of the tokens between this lane's quad and the tile's end
  double of_warp;      // of all tokens of the tile

  __device__ __forceinline__ DecayPowers(double decay, int lane) {
    double power = decay * decay;
    power *= power;
    to_end = 1;
    // After this lane's quad (its four tokens), 31 − lane quads follow in the tile. The bits of 31 − lane
    // select the powers whose product is to_end.
#pragma unroll
    for (int k = 0; k < 5; ++k) {
      of_lanes[k] = power;
      to_end *= (kWarp - 1 - lane) >> k & 1 ? power : 1.0;
      power *= power;
    }
    of_warp = power;
  }

  // For a function that skips masked tokens. `of_quad` is the product of the decays of this lane's tokens.
  __device__ __forceinline__ static DecayPowers skipping(double of_quad, int lane) {
    DecayPowers powers;
    double power = of_quad;
#pragma unroll
    for (int k = 0; k < 5; ++k) {
      powers.of_lanes[k] = power;
      const double after = __shfl_down_sync(kAllLanes, power, 1u << k);
      power *= lane + (1 << k) < kWarp ? after : 1.0;
    }
    const double after_lane = __shfl_down_sync(kAllLanes, power, 1u);
    powers.to_end = lane + 1 < kWarp ? after_lane : 1.0;
    powers.of_warp = __shfl_sync(kAllLanes, power, 0);
    return powers;
  }

 private:
  DecayPowers() = default;
};

// Accumulates the spread (count, mean and squared deviations) of a lane's numbers. It sums their distances
// from the first number, so that numbers far from 0 lose no digits.
struct Measure {
  double pivot = 0, sum = 0, squares = 0;
  int64_t count = 0;

  // Adds the numbers whose bits are set in `which`, from the last to the first.
  __device__ __forceinline__ void add(const double (&x)[kQuad], unsigned which) {
    if (count == 0 && which != 0) {
#pragma unroll
      for (int j = 0; j < kQuad; ++j)
        if (which >> j & 1) pivot = x[j];
    }
    count += __popc(which);
#pragma unroll
    for (int j = kQuad - 1; j >= 0; --j) {
      if ((which >> j & 1) == 0) continue;
      const double d = x[j] - pivot;
      sum += d;
      squares += d * d;
    }
  }
  __device__ __forceinline__ Spread spread() const {
    if (count == 0) return {};
    const double n = static_cast<double>(count);
    return {n, pivot + sum / n, squares - sum * (sum / n)};
  }
};

// What a lane loads for the four tokens that it computes together. The numbers are as they are in memory, so
// that a warp can load the tokens of a later tile without waiting for them.
struct LoadedQuad {
  uint32_t mask = 0;
  Quad rewards{}, values{};
  Quad after{};  // the values of the four tokens after the warp's; only the last lane loads them
};

// Loads the four tokens that begin with token i. If the row ends before it, loads the row's last tokens in
// their place, which read_quad() drops.
template <class F, bool loads_after, Reuse reuse>
__device__ __forceinline__ LoadedQuad load_recurrence_quad(const AdvantagePass& pass, const RowRange& row,
                                                           int64_t i) {
  const ColumnView& rewards = pass.batch.column[kTokenLevelRewardsInput];
  const ColumnView& values = pass.batch.column[kValuesInput];
  LoadedQuad quad;
  if constexpr (loads_after && F::traits.reads_values && !F::traits.skips_masked)
    if (threadIdx.x % kWarp == kWarp - 1 && i + kQuad < row.end)
      quad.after = load_quad<Reuse::kLater>(values, i + kQuad);
  i = min(i, (row.end - 1) / kQuad * kQuad);
  quad.mask = load<Reuse::kLater>(reinterpret_cast<const uint32_t*>(pass.batch.mask + i));
  if (rewards.data) quad.rewards = load_quad<reuse>(rewards, i);
  if constexpr (F::traits.reads_values) quad.values = load_quad<reuse>(values, i);
  return quad;
}

// The four tokens that a lane computes together for one row. Those that lie outside the row are 0.
struct RecurrenceQuad {
  int64_t first;   // the index of the first token
  unsigned which;  // the bits of the tokens that are in the row
  unsigned live;   // the bits of the tokens that are also unmasked
  double rewards[kQuad];
  Quad values;
  float after;  // the value of the token after the warp's tokens, in the warp's last lane

  __device__ __forceinline__ RecurrenceToken token(int j, double next_value) const {
    return {rewards[j], values[j], next_value, (live >> j & 1) != 0};
  }

  // Puts the row's reward at the row's last unmasked token, which is token `rewarded` of the four.
  __device__ __forceinline__ void reward(int rewarded, double of_row) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j)
      if (j == rewarded) rewards[j] = of_row;
  }
};

// Reads what load_recurrence_quad() loaded. `at` is the first token of the warp's tile. If `checks` is
// set, reports inputs that are not finite.
template <class F, bool checks>
__device__ __forceinline__ RecurrenceQuad read_quad(const AdvantagePass& pass, const RowRange& row,
                                                    int64_t at, LoadedQuad loaded) {
  const ColumnView& rewards = pass.batch.column[kTokenLevelRewardsInput];
  const ColumnView& values = pass.batch.column[kValuesInput];
  RecurrenceQuad quad;
  quad.first = at + threadIdx.x % kWarp * kQuad;
  quad.which = 0xf;
  if (rewards.data) widen(rewards.dtype, &loaded.rewards);
  if constexpr (F::traits.reads_values) {
    widen(values.dtype, &loaded.values);
    widen(values.dtype, &loaded.after);
  }
  if (!row.contains(at, at + kTile)) {
    quad.which = quad.first < row.end ? bits_within(quad.first, row.begin, row.end) : 0;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if (quad.which >> j & 1) continue;
      loaded.rewards.set(j, 0);
      loaded.values.set(j, 0);
    }
  }
  quad.live = mask_bits(loaded.mask) & quad.which;
  if constexpr (checks) {
    if ((non_finite_bits(loaded.rewards) & (F::traits.reads_masked ? quad.which : quad.live)) != 0)
      report_non_finite(pass, NonFiniteInput::kTokenRewards, row.row);
    if (F::traits.reads_values && non_finite_bits(loaded.values) != 0)
      report_non_finite(pass, NonFiniteInput::kValues, row.row);
  }
#pragma unroll
  for (int j = 0; j < kQuad; ++j) quad.rewards[j] = loaded.rewards[j];
  quad.values = loaded.values;
  quad.after = loaded.after[0];
  return quad;
}

// Returns the value of the token after this lane's four. `after` is the value of the token after the warp's
// tokens.
__device__ __forceinline__ float value_after(const RecurrenceQuad& quad, int lane, float after) {
  const float of_next = __shfl_down_sync(kAllLanes, quad.values[0], 1u);
  return lane + 1 < kWarp ? of_next : after;
}

// Returns the value of the next unmasked token after this lane's four, for a function that skips masked
// tokens. *carried is the value of the first unmasked token after the warp's tokens. It is replaced with the
// value of the warp's first unmasked token, if there is one.
__device__ __forceinline__ float next_unmasked_value(const RecurrenceQuad& quad, int lane, float* carried) {
  const unsigned lanes = __ballot_sync(kAllLanes, quad.live != 0);
  float mine = 0;
#pragma unroll
  for (int j = kQuad - 1; j >= 0; --j)
    if (quad.live >> j & 1) mine = quad.values[j];
  const unsigned later = lane + 1 < kWarp ? lanes >> (lane + 1) << (lane + 1) : 0u;
  const float found = __shfl_sync(kAllLanes, mine, later != 0 ? __ffs(later) - 1 : lane);
  const float first = __shfl_sync(kAllLanes, mine, lanes != 0 ? __ffs(lanes) - 1 : lane);
  const float next = later != 0 ? found : *carried;
  if (lanes != 0) *carried = first;
  return next;
}

// The terms and decays of a lane's four tokens, and what they add up to.
template <class F>
struct QuadTerms {
  double term[kQuad], decay[kQuad];
  double suffix = 0;   // x at the first token, computed as if no token followed the four
  double of_quad = 1;  // the product of the decays

  // next_value is the value of the (unmasked, if the function skips masked tokens) token after the four.
  __device__ __forceinline__ QuadTerms(const F& f, const RecurrenceQuad& quad, float next_value) {
    double next = next_value;
#pragma unroll
    for (int j = kQuad - 1; j >= 0; --j) {
      const bool counts = !F::traits.skips_masked || (quad.live >> j & 1) != 0;
      term[j] = counts ? f.term(quad.token(j, next)) : 0.0;
      decay[j] = counts ? f.decay : 1.0;
      if (counts) next = quad.values[j];
      if (F::traits.skips_masked) of_quad *= decay[j];
      suffix = term[j] + decay[j] * suffix;
    }
  }
};

// Returns which of this lane's four tokens is the last unmasked one of the warp, or −1 if none of them is.
__device__ __forceinline__ int last_unmasked(unsigned live, int lane) {
  const unsigned lanes = __ballot_sync(kAllLanes, live != 0);
  return lanes != 0 && lane == kWarp - 1 - __clz(lanes) ? kWarp - 1 - __clz(live) : -1;
}

// As above, for the tokens that a team of warps computes. Sets *waits to true if none of them is unmasked,
// otherwise to false. any_unmasked is shared memory through which the team's warps communicate.
template <int warps>
__device__ __forceinline__ int last_unmasked_of_team(unsigned live, int lane, int warp,
                                                     int (&any_unmasked)[kWarps], bool* waits) {
  bool any = __ballot_sync(kAllLanes, live != 0) != 0;
  bool later = false;
  if constexpr (warps > 1) {
    if (lane == 0) any_unmasked[warp] = any;
    __syncthreads();
    for (int other = 0; other < warps; ++other) {
      any = any || any_unmasked[other] != 0;
      later = later || (other > warp && any_unmasked[other] != 0);
    }
  }
  *waits = !any;
  const int mine = last_unmasked(live, lane);
  return later ? -1 : mine;
}

// Computes the recurrence backwards over a warp's tokens, as if no token followed them. suffix is x at the
// lane's first token, computed as if no token followed the lane's four. Returns x at the lane's first token.
__device__ __forceinline__ double scan_warp(double suffix, const DecayPowers& powers, int lane) {
#pragma unroll
  for (int k = 0; k < 5; ++k) {
    const double after = __shfl_down_sync(kAllLanes, suffix, 1u << k);
    if (lane + (1 << k) < kWarp) suffix += powers.of_lanes[k] * after;
  }
  return suffix;
}

// Returns x at the token that follows this lane's four. `suffix` is the result of scan_warp(), and after_warp
// is x at the token after the warp's.
__device__ __forceinline__ double x_after_lane(double suffix, const DecayPowers& powers, int lane,
                                               double after_warp) {
  const double after_lane = __shfl_down_sync(kAllLanes, suffix, 1u);
  return (lane + 1 < kWarp ? after_lane : 0.0) + powers.to_end * after_warp;
}

// Returns x at the token after this warp's tokens. `suffix` is the result of scan_warp(). *carried is x at
// the token after the team's tile; it is replaced with x at the tile's first token. of_warps is shared
// memory through which the team's warps communicate.
template <int warps>
__device__ __forceinline__ double carry(double suffix, const DecayPowers& powers, int lane, int warp,
                                        double (&of_warps)[kWarps], double* carried) {
  const double of_warp = __shfl_sync(kAllLanes, suffix, 0);
  double after_warp = *carried;
  if constexpr (warps > 1) {
    if (lane == 0) of_warps[warp] = of_warp;
    __syncthreads();
    for (int other = warps - 1; other >= 0; --other) {
      if (other == warp) after_warp = *carried;
      *carried = of_warps[other] + powers.of_warp * *carried;
    }
  } else {
    *carried = of_warp + powers.of_warp * *carried;
  }
  return after_warp;
}

// Writes the advantages and the returns of a lane's tokens or, if `measured` is set, only adds the advantages
// to *measure.
template <class F, bool measured>
class RecurrenceOutput {
 public:
  __device__ __forceinline__ RecurrenceOutput(const AdvantagePass& pass, const F& f) : pass_(pass), f_(f) {
    if constexpr (F::traits.whitened && !measured) {
      shift_ = pass.state->whitening.shift();
      scale_ = pass.state->whitening.scale;
    }
  }

  // x is that of the token after the four.
  __device__ __forceinline__ void leave(const RecurrenceQuad& quad, const QuadTerms<F>& terms, double x,
                                        double baseline) {
    double advantages[kQuad];
    float returns[kQuad];
#pragma unroll
    for (int j = kQuad - 1; j >= 0; --j) {
      x = terms.term[j] + terms.decay[j] * x;
      const RecurrenceToken t = quad.token(j, 0);
      advantages[j] = f_.advantage(x, t, baseline);
      returns[j] = static_cast<float>(f_.returns(x, t));
    }
    if constexpr (measured) {
      measure_.add(advantages, quad.live);
    } else {
      float written[kQuad];
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        const bool is_zero = F::traits.zeroes_masked && (quad.live >> j & 1) == 0;
        written[j] = is_zero ? 0.0f : static_cast<float>((advantages[j] - shift_) * scale_);
      }
      store_quad(pass_.advantages, quad.first, quad.which, written);
      if (pass_.returns) store_quad(pass_.returns, quad.first, quad.which, returns);
    }
  }

  // Must be called by all threads of the grid, after their last call of leave().
  __device__ __forceinline__ void end() {
    if constexpr (measured) find_whitening(pass_, measure_.spread(), F::traits.whitening_tokens);
  }

 private:
  const AdvantagePass& pass_;
  const F& f_;
  double shift_ = 0, scale_ = 1;
  Measure measure_;
};

// Computes advantages and returns. A team of `warps` warps goes through each row from its end. While it
// computes a tile, it loads the next one.
//
// If `measured` is set, the kernel only computes how to whiten the advantages. A second launch then computes
// the advantages again, because storing them in between would cost memory in float64 and digits in float32.
template <class F, int warps, bool measured>
__global__ void __launch_bounds__(kThreads, kRecurrenceBlocks)
    recurrence_kernel(const AdvantagePass pass, const F f) {
  constexpr int64_t tile = static_cast<int64_t>(warps) * kTile;
  constexpr Reuse reuse = measured ? Reuse::kLater : Reuse::kNever;
  const Layout& layout = pass.batch.layout;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp % warps;
  const DecayPowers uniform(f.decay, lane);
  // Each of these arrays has two sets of values, which are used alternately. No value is then overwritten
  // before all of the team's warps have read it.
  __shared__ double suffixes[2][kWarps];
  __shared__ int any_unmasked[2][kWarps];
  int set = 0;
  RecurrenceOutput<F, measured> output(pass, f);

  const int64_t team = static_cast<int64_t>(blockIdx.x) * (kWarps / warps) + threadIdx.x / kWarp / warps;
  const int64_t teams = static_cast<int64_t>(gridDim.x) * (kWarps / warps);
  for (int64_t index = team; index < layout.rows; index += teams) {
    const RowRange row(layout, index);
    const double baseline = F::traits.reads_baseline ? pass.baselines[index] : 0.0;
    // If the batch has no token rewards, the row's reward belongs to the row's last unmasked token.
    // reward_waits is true until the team reaches that token.
    bool reward_waits = !pass.batch.column[kTokenLevelRewardsInput].data;
    double carried = 0;
    float carried_value = 0;
    const auto load_tile = [&](int64_t at) {
      return load_recurrence_quad<F, (warps > 1), reuse>(pass, row,
                                                         at + threadIdx.x % (warps * kWarp) * kQuad);
    };
    int64_t at = row.last(tile);
    LoadedQuad next;
    if (at >= row.aligned) next = load_tile(at);
    for (; at >= row.aligned; at -= tile) {
      const LoadedQuad loaded = next;
      if (at - tile >= row.aligned) next = load_tile(at - tile);
      RecurrenceQuad quad = read_quad < F,
                     measured || !F::traits.whitened > (pass, row, at + warp * kTile, loaded);
      if (reward_waits)
        quad.reward(last_unmasked_of_team<warps>(quad.live, lane, warp, any_unmasked[set], &reward_waits),
                    pass.rewards[index]);
      float next_value = 0;
      if constexpr (F::traits.skips_masked) {
        next_value = next_unmasked_value(quad, lane, &carried_value);
      } else if constexpr (F::traits.reads_values) {
        next_value = value_after(quad, lane, warps > 1 ? quad.after : carried_value);
        carried_value = __shfl_sync(kAllLanes, quad.values[0], 0);
      }
      const QuadTerms<F> terms(f, quad, next_value);
      const DecayPowers powers =
          F::traits.skips_masked ? DecayPowers::skipping(terms.of_quad, lane) : uniform;
      const double suffix = scan_warp(terms.suffix, powers, lane);
      const double after = carry<warps>(suffix, powers, lane, warp, suffixes[set], &carried);
      if constexpr (warps > 1) set ^= 1;
      output.leave(quad, terms, x_after_lane(suffix, powers, lane, after), baseline);
    }
  }
  output.end();
}

}  // namespace policy_loss::cuda

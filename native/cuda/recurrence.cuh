// The kernels of recurrences (advantage/recurrence.h), which compute x_t = term_t + decay·x_{t+1}. They go
// through each row from its end, in float64.
//
// A team of warps computes one row at a time, in stretches of 128 tokens per warp. The x at the start of a
// stretch is the discounted sum of the stretch's own terms, plus a power of decay times the x after the
// stretch. The sums are combined in a fixed order, so the results have the same bits on every run.
#pragma once

#include "cuda/finite.cuh"
#include "cuda/spans.cuh"
#include "engine/advantage_registry.h"

namespace policy_loss::cuda {

// The powers of decay that a lane needs to compute a stretch.
struct DecayPowers {
  double of_lanes[5];  // decay^4, decay^8, decay^16, decay^32 and decay^64
  double to_end;       // decay to the power of the tokens between this lane's quad and the stretch's end
  double of_warp;      // decay to the power of the stretch's length

  __device__ __forceinline__ DecayPowers(double decay, int lane) {
    double power = decay * decay;
    power *= power;
    to_end = 1;
    // After this lane's quad (its four tokens), 31 − lane quads follow in the stretch. The bits of 31 − lane
    // select the powers whose product is to_end.
#pragma unroll
    for (int k = 0; k < 5; ++k) {
      of_lanes[k] = power;
      to_end *= (kWarp - 1 - lane) >> k & 1 ? power : 1.0;
      power *= power;
    }
    of_warp = power;
  }
};

// Accumulates the spread (count, mean and squared deviations) of a lane's numbers. It sums their distances
// from the first number, so that numbers far from 0 lose no digits.
struct Measure {
  double pivot = 0, count = 0, sum = 0, squares = 0;

  __device__ __forceinline__ void add(double x) {
    if (count == 0) pivot = x;
    const double d = x - pivot;
    count += 1;
    sum += d;
    squares += d * d;
  }
  __device__ __forceinline__ Spread spread() const {
    if (count == 0) return {};
    return {count, pivot + sum / count, squares - sum * (sum / count)};
  }
};

// Combines the spreads of a block's threads: counts, means and squared deviations. Only thread 0 gets the
// result.
__device__ __forceinline__ Spread block_spread(Spread mine) {
  __shared__ Spread of_warp[kWarps];
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    mine.add({__shfl_down_sync(kAllLanes, mine.count, distance),
              __shfl_down_sync(kAllLanes, mine.mean, distance),
              __shfl_down_sync(kAllLanes, mine.squares, distance)});
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = mine;
  __syncthreads();
  Spread all;
  for (int warp = 0; warp < kWarps; ++warp) all.add(of_warp[warp]);
  return all;
}

// Combines the spreads of all threads of the grid in a fixed order. Stores the shift and the scale with which
// the advantages are whitened.
__device__ __forceinline__ void find_whitening(const AdvantagePass& pass, const Spread& mine) {
  const Spread of_block = block_spread(mine);
  if (threadIdx.x == 0) pass.spreads[blockIdx.x] = of_block;
  if (!is_last_block(&pass.state->ticket)) return;
  Spread several;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += kThreads) {
    const Spread& part = pass.spreads[block];
    several.add({__ldcg(&part.count), __ldcg(&part.mean), __ldcg(&part.squares)});
  }
  const Spread all = block_spread(several);
  if (threadIdx.x != 0) return;
  pass.state->shift = all.mean;
  pass.state->scale = all.whitening();
}

// The four tokens that a lane computes together for one row. Some of the four may lie outside the row.
struct RecurrenceQuad {
  int64_t first = 0;   // the index of the first token
  unsigned which = 0;  // the bits of the tokens that are in the row
  unsigned live = 0;   // the bits of the tokens that are also unmasked
  Quad rewards{}, values{};
  float next = 0;     // the value of the token after the four
  int rewarded = -1;  // which of the four has the row's reward; -1: none

  __device__ __forceinline__ RecurrenceToken token(int j, int64_t end, const double* row_rewards,
                                                   int64_t row) const {
    const bool last = first + j + 1 >= end;
    return {j == rewarded ? row_rewards[row] : rewards[j], values[j],
            last            ? 0.0f
            : j + 1 < kQuad ? values[j + 1 < kQuad ? j + 1 : 0]
                            : next,
            (live >> j & 1) != 0};
  }
};

template <Reuse reuse>
__device__ __forceinline__ Quad load_floats(const ColumnView& view, int64_t i) {
  Quad quad = load_quad<reuse>(view, i);
  widen(view.dtype, &quad);
  return quad;
}

// Loads the four tokens that begin with token i, as far as they lie in the row's range [begin, end). Reports
// inputs that are not finite.
template <class F>
__device__ __forceinline__ RecurrenceQuad load_recurrence_quad(const AdvantagePass& pass, int64_t row,
                                                               int64_t begin, int64_t end, int64_t i) {
  const ColumnView& rewards = pass.batch.column[kTokenRewards];
  const ColumnView& values = pass.batch.column[kValues];
  RecurrenceQuad quad;
  quad.first = i;
  quad.which = i < end ? bits_within(i, begin, end) : 0;
  if (quad.which == 0) return quad;
  quad.live = load_mask<Reuse::kLater>(pass.batch.mask, i) & quad.which;
  if (rewards.data) {
    quad.rewards = load_floats<Reuse::kNever>(rewards, i);
    if ((non_finite_bits(quad.rewards) & (F::traits.reads_masked ? quad.which : quad.live)) != 0)
      report_non_finite(pass, NonFiniteInput::kTokenRewards, row);
  }
  if constexpr (F::traits.reads_values) {
    quad.values = load_floats<Reuse::kNever>(values, i);
    if ((non_finite_bits(quad.values) & quad.which) != 0)
      report_non_finite(pass, NonFiniteInput::kValues, row);
    if (i + kQuad < end) quad.next = load_one(values, i + kQuad);
  }
  return quad;
}

// Finds the last unmasked token of the stretch that the team of warps computes. If it is one of this lane's
// four tokens, returns its index among the four, otherwise -1. Sets *waits to true if the stretch has no
// unmasked token, otherwise to false. any_unmasked is shared memory through which the team's warps
// communicate.
template <int warps>
__device__ __forceinline__ int last_unmasked(unsigned live, int lane, int warp, int (&any_unmasked)[kWarps],
                                             bool* waits) {
  const unsigned lanes = __ballot_sync(kAllLanes, live != 0);
  bool mine = lanes != 0 && lane == kWarp - 1 - __clz(lanes);
  bool any = lanes != 0;
  if constexpr (warps > 1) {
    if (lane == 0) any_unmasked[warp] = any;
    __syncthreads();
    any = false;
    for (int other = 0; other < warps; ++other) {
      any = any || any_unmasked[other] != 0;
      mine = mine && !(other > warp && any_unmasked[other] != 0);
    }
  }
  *waits = !any;
  return mine ? kWarp - 1 - __clz(live) : -1;
}

// Computes the recurrence backwards over a stretch. Returns x at the token that follows this lane's four
// tokens.
//
// suffix is x at the lane's first token, computed as if no token followed the lane's four. *carried is x at
// the token after the stretch; it is replaced with x at the stretch's first token. of_warps is shared memory
// through which the team's warps communicate.
template <int warps>
__device__ __forceinline__ double scan_back(double suffix, const DecayPowers& powers, int lane, int warp,
                                            double (&of_warps)[kWarps], double* carried) {
  // After this loop, suffix is x at this lane's first token, computed as if no token followed the warp's
  // tokens.
#pragma unroll
  for (int k = 0; k < 5; ++k) {
    const double after = __shfl_down_sync(kAllLanes, suffix, 1u << k);
    suffix += lane + (1 << k) < kWarp ? powers.of_lanes[k] * after : 0.0;
  }
  const double after_lane = __shfl_down_sync(kAllLanes, suffix, 1u);
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
  return (lane + 1 < kWarp ? after_lane : 0.0) + powers.to_end * after_warp;
}

// Computes advantages and returns. A team of `warps` warps goes through each row from its end.
//
// If `measured` is set, the kernel only computes how to whiten the advantages. A second launch then computes
// the advantages again, because storing them in between would cost memory in float64 and digits in float32.
template <class F, int warps, bool measured>
__global__ void __launch_bounds__(kThreads) recurrence_kernel(const AdvantagePass pass, const F f) {
  constexpr int64_t stretch = static_cast<int64_t>(warps) * kStretch;
  const Layout& layout = pass.batch.layout;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp % warps;
  const DecayPowers powers(f.decay, lane);
  // Each of these arrays has two sets of values, which are used in turn. No value is then overwritten before
  // all of the team's warps have read it.
  __shared__ double suffixes[2][kWarps];
  __shared__ int any_unmasked[2][kWarps];
  int turn = 0;
  Measure measure;
  double shift = 0, scale = 1;
  if constexpr (F::traits.whitened && !measured) {
    shift = pass.state->shift;
    scale = pass.state->scale;
  }

  const int64_t team = static_cast<int64_t>(blockIdx.x) * (kWarps / warps) + threadIdx.x / kWarp / warps;
  const int64_t teams = static_cast<int64_t>(gridDim.x) * (kWarps / warps);
  for (int64_t row = team; row < layout.rows; row += teams) {
    const int64_t begin = layout.begin(row);
    const int64_t end = begin + layout.length(row);
    const int64_t aligned = begin / kQuad * kQuad;
    double baseline = 0;
    if constexpr (F::traits.reads_baseline) baseline = pass.baselines[row];
    // If the batch has no token rewards, the row's reward belongs to the row's last unmasked token.
    // reward_waits is true until the team reaches that token.
    bool reward_waits = !pass.batch.column[kTokenRewards].data;
    double carried = 0;
    for (int64_t at = end > begin ? aligned + (end - 1 - aligned) / stretch * stretch : aligned - 1;
         at >= aligned; at -= stretch) {
      RecurrenceQuad quad =
          load_recurrence_quad<F>(pass, row, begin, end, at + (warp * kWarp + lane) * kQuad);
      if (reward_waits)
        quad.rewarded = last_unmasked<warps>(quad.live, lane, warp, any_unmasked[turn], &reward_waits);
      double terms[kQuad];
      double suffix = 0;
#pragma unroll
      for (int j = kQuad - 1; j >= 0; --j) {
        terms[j] = quad.which >> j & 1 ? f.term(quad.token(j, end, pass.rewards, row)) : 0.0;
        suffix = terms[j] + f.decay * suffix;
      }
      double x = scan_back<warps>(suffix, powers, lane, warp, suffixes[turn], &carried);
      if constexpr (warps > 1) turn ^= 1;
      float advantages[kQuad], returns[kQuad];
#pragma unroll
      for (int j = kQuad - 1; j >= 0; --j) {
        x = terms[j] + f.decay * x;
        const RecurrenceToken t = quad.token(j, end, pass.rewards, row);
        const double a = f.advantage(x, t, baseline);
        if constexpr (measured) {
          if (t.unmasked) measure.add(a);
        } else {
          advantages[j] =
              F::traits.zeroes_masked && !t.unmasked ? 0.0f : static_cast<float>((a - shift) * scale);
          returns[j] = static_cast<float>(f.returns(x, t));
        }
      }
      if constexpr (!measured) {
        store_quad(pass.advantages, quad.first, quad.which, advantages);
        if (pass.returns) store_quad(pass.returns, quad.first, quad.which, returns);
      }
    }
  }
  if constexpr (measured) find_whitening(pass, measure.spread());
}

}  // namespace policy_loss::cuda

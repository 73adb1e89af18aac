// The kernels of recurrences (advantage/recurrence.h), which compute x_t = term_t + decay·x_{t+1}. They go
// through each row from its end, in float64.
//
// A team of warps computes one row at a time, in stretches of 128 tokens per warp. The x at the start of a
// stretch is the discounted sum of the stretch's own terms, plus a power of decay times the x after the
// stretch. The sums are combined in a fixed order, so the results have the same bits on every run.
//
// A function that skips masked tokens has the decay 1 and the term 0 there. Its team is always one warp.
#pragma once

#include "cuda/finite.cuh"
#include "cuda/spans.cuh"
#include "cuda/whitening.cuh"
#include "engine/advantage_registry.h"

namespace policy_loss::cuda {

// The products of the decays of several tokens that a lane needs to compute a stretch.
struct DecayPowers {
  double of_lanes[5];  // of the quads of 1, 2, 4, 8 and 16 lanes, of which this lane is the first
  double to_end;       // of the tokens between this lane's quad and the stretch's end
  double of_warp;      // of all tokens of the stretch

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

// The four tokens that a lane computes together for one row. Some of the four may lie outside the row.
struct RecurrenceQuad {
  int64_t first = 0;   // the index of the first token
  unsigned which = 0;  // the bits of the tokens that are in the row
  unsigned live = 0;   // the bits of the tokens that are also unmasked
  Quad rewards{}, values{};
  float next = 0;     // the value of the (unmasked, see skip()) token after the four
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
  // For a function that skips masked tokens; next_value is the value of the next unmasked token.
  __device__ __forceinline__ RecurrenceToken unmasked_token(int j, double next_value,
                                                            const double* row_rewards, int64_t row) const {
    return {j == rewarded ? row_rewards[row] : rewards[j], values[j], next_value, (live >> j & 1) != 0};
  }
};

// Returns the value of the next unmasked token after this lane's four, for a function that skips masked
// tokens. *carried is the value of the first unmasked token after the warp's tokens. It is replaced with the
// value of the warp's first unmasked token, if there is one.
__device__ __forceinline__ float next_unmasked_value(const RecurrenceQuad& quad, int lane, float* carried) {
  const unsigned lanes = __ballot_sync(kAllLanes, quad.live != 0);
  const float mine = quad.live != 0 ? quad.values[__ffs(quad.live) - 1] : 0.0f;
  const unsigned later = lane + 1 < kWarp ? lanes >> (lane + 1) << (lane + 1) : 0u;
  const float found = __shfl_sync(kAllLanes, mine, later != 0 ? __ffs(later) - 1 : lane);
  const float first = __shfl_sync(kAllLanes, mine, lanes != 0 ? __ffs(lanes) - 1 : lane);
  const float next = later != 0 ? found : *carried;
  if (lanes != 0) *carried = first;
  return next;
}

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
  const DecayPowers uniform(f.decay, lane);
  // Each of these arrays has two sets of values, which are used in turn. No value is then overwritten before
  // all of the team's warps have read it.
  __shared__ double suffixes[2][kWarps];
  __shared__ int any_unmasked[2][kWarps];
  int turn = 0;
  Measure measure;
  double shift = 0, scale = 1;
  if constexpr (F::traits.whitened && !measured) {
    shift = pass.state->whitening.shift();
    scale = pass.state->whitening.scale;
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
    float carried_value = 0;
    for (int64_t at = end > begin ? aligned + (end - 1 - aligned) / stretch * stretch : aligned - 1;
         at >= aligned; at -= stretch) {
      RecurrenceQuad quad =
          load_recurrence_quad<F>(pass, row, begin, end, at + (warp * kWarp + lane) * kQuad);
      if (reward_waits)
        quad.rewarded = last_unmasked<warps>(quad.live, lane, warp, any_unmasked[turn], &reward_waits);
      double terms[kQuad], decays[kQuad];
      double suffix = 0, of_quad = 1;
      double next_value = 0;
      if constexpr (F::traits.skips_masked) next_value = next_unmasked_value(quad, lane, &carried_value);
#pragma unroll
      for (int j = kQuad - 1; j >= 0; --j) {
        if constexpr (F::traits.skips_masked) {
          const bool live = (quad.live >> j & 1) != 0;
          terms[j] = live ? f.term(quad.unmasked_token(j, next_value, pass.rewards, row)) : 0.0;
          decays[j] = live ? f.decay : 1.0;
          if (live) next_value = quad.values[j];
          of_quad *= decays[j];
        } else {
          terms[j] = quad.which >> j & 1 ? f.term(quad.token(j, end, pass.rewards, row)) : 0.0;
          decays[j] = f.decay;
        }
        suffix = terms[j] + decays[j] * suffix;
      }
      const DecayPowers powers = F::traits.skips_masked ? DecayPowers::skipping(of_quad, lane) : uniform;
      double x = scan_back<warps>(suffix, powers, lane, warp, suffixes[turn], &carried);
      if constexpr (warps > 1) turn ^= 1;
      float advantages[kQuad], returns[kQuad];
#pragma unroll
      for (int j = kQuad - 1; j >= 0; --j) {
        x = terms[j] + decays[j] * x;
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
  if constexpr (measured) find_whitening(pass, measure.spread(), F::traits.whitening_tokens);
}

}  // namespace policy_loss::cuda

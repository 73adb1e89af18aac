// Divides the steps of a batch among the warps of a grid. A step (pass.h) is live if it has an unmasked
// token, and dead otherwise.
//
// Padding gathers in some places: at the ends of rows, or in the second half of a batch whose rows are sorted
// by length. Equal numbers of steps would therefore leave some warps almost without work. Each warp gets two
// shares instead: one of the live steps, and one of the dead steps, for which it only stores gradients of 0.
// The shares of two warps, and also those of two blocks, differ by at most one step. They follow from the
// mask and from the size of the grid, so sums over them have the same bits on every run.
#pragma once

#include "cuda/warp.cuh"

namespace policy_loss::cuda {

enum class StepKind { kLive, kDead };

// Sets live_before in each of the states. All threads of one block must call it.
__device__ __forceinline__ void number_live_steps(SpanState* states, int64_t spans) {
  __shared__ int64_t of_warp[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t share = (spans + kThreads - 1) / kThreads;
  const int64_t first = min(threadIdx.x * share, spans);
  const int64_t last = min(first + share, spans);
  int64_t mine = 0;
#pragma unroll 8
  for (int64_t span = first; span < last; ++span) mine += __popc(__ldcg(&states[span].live_steps));
  int64_t until = mine;  // the steps of this lane and the lanes before it
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int64_t other = __shfl_up_sync(kAllLanes, until, distance);
    if (lane >= distance) until += other;
  }
  if (lane == kWarp - 1) of_warp[warp] = until;
  __syncthreads();
  int64_t before = until - mine;
  for (int other = 0; other < warp; ++other) before += of_warp[other];
#pragma unroll 8
  for (int64_t span = first; span < last; ++span) {
    states[span].live_before = before;
    before += __popc(__ldcg(&states[span].live_steps));
  }
}

// The steps of one kind in a span.
struct StepsOfSpan {
  int64_t before;  // the number of steps of the kind in all spans before
  unsigned steps;  // bit k: step k of the span is of the kind
};

template <StepKind kind>
__device__ __forceinline__ StepsOfSpan steps_of(const SpannedBatch& pass, const SpanState* states,
                                                int64_t span) {
  const int64_t before = states[span].live_before;
  const unsigned live = states[span].live_steps;
  if (kind == StepKind::kLive) return {before, live};
  const int64_t tokens = min(pass.span, pass.tokens - span * pass.span);
  const int count = static_cast<int>((tokens + kSpanStep - 1) / kSpanStep);
  return {span * (pass.span / kSpanStep) - before, ~live & (~0u >> (32 - count))};
}

// Returns the last span before which there are at most `step` steps of a kind. The lanes of a warp search
// together.
template <StepKind kind>
__device__ __forceinline__ int64_t find_span(const SpannedBatch& pass, const SpanState* states,
                                             int64_t step) {
  int64_t low = 0, high = pass.spans;
  while (high - low > 1) {
    const int64_t stride = (high - low + kWarp - 1) / kWarp;
    const int64_t probe = low + threadIdx.x % kWarp * stride;
    const bool is_low = probe < high && steps_of<kind>(pass, states, probe).before <= step;
    low += (__popc(__ballot_sync(kAllLanes, is_low)) - 1) * stride;
    high = min(high, low + stride);
  }
  return low;
}

// Calls visit(span, steps) for each span with steps of this warp's share. Bit k of `steps` is set if the
// share contains step k of the span. All threads of the block must call this together, once for each kind.
template <StepKind kind, class Visit>
__device__ __forceinline__ void for_share(const SpannedBatch& pass, const SpanState* states, Visit visit) {
  if (pass.spans == 0) return;
  // The share of warp w of the block begins at bounds[w] and ends before bounds[w + 1], in the order of the
  // batch's steps of the kind.
  __shared__ int64_t bounds[kWarps + 1];
  if (threadIdx.x <= kWarps) {
    const StepsOfSpan last = steps_of<kind>(pass, states, pass.spans - 1);
    const int64_t all = last.before + __popc(last.steps);
    bounds[threadIdx.x] = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x) * all / all_warps();
  }
  __syncthreads();
  const int64_t* const mine = bounds + threadIdx.x / kWarp;
  if (mine[0] == mine[1]) return;
  for (int64_t span = find_span<kind>(pass, states, mine[0]); span < pass.spans; ++span) {
    const StepsOfSpan of_span = steps_of<kind>(pass, states, span);
    if (of_span.before >= mine[1]) break;
    const unsigned lane = threadIdx.x % kWarp;
    const int64_t number = of_span.before + __popc(of_span.steps & ((1u << lane) - 1u));
    const bool is_mine = (of_span.steps >> lane & 1) != 0 && number >= mine[0] && number < mine[1];
    const unsigned steps = __ballot_sync(kAllLanes, is_mine);
    if (steps != 0) visit(span, steps);
  }
}

}  // namespace policy_loss::cuda

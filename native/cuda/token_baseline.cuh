// The kernels of functions with a baseline per token (advantage/token_baseline.h). Sums along a row are
// computed tile by tile: the first kernel computes the sums over each tile, the second the sums over
// the tiles after and before it, and the third the sums of each token. The fourth computes the baselines
// of each group, and the last the advantages. All but the second use every warp of the GPU, even for one row.
#pragma once

#include "cuda/long_rows.cuh"

namespace policy_loss::cuda {

constexpr unsigned kBaselineColumns = reads(kTokenLevelRewardsInput) | reads(kOldLogprobInput) |
                                      reads(kSumPiSquaredInput) | reads(kRolloutIsWeightsInput);

// The sum of the rewards of the unmasked tokens from a token to the end of its row, as a recurrence.
struct RewardToGo {
  static constexpr RecurrenceTraits traits{};
  static constexpr double decay = 1.0;

  PL_FN double term(const RecurrenceToken& t) const { return t.unmasked ? t.reward : 0.0; }
};

// Returns the sum of x over the lanes from the first up to this one.
template <class T>
__device__ __forceinline__ T sum_up_to(T x, int lane) {
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T before = __shfl_up_sync(kAllLanes, x, distance);
    if (lane >= distance) x += before;
  }
  return x;
}

// Returns the number of unmasked tokens of the lanes before this one.
__device__ __forceinline__ int unmasked_before(unsigned live, int lane) {
  return sum_up_to(__popc(live), lane) - __popc(live);
}

__device__ __forceinline__ Quad load_floats(const ColumnView& view, int64_t i) {
  Quad quad = load_quad<Reuse::kNever>(view, i);
  widen(view.dtype, &quad);
  return quad;
}

// Computes the energies of a lane's tokens, and stores them in place of the rewards to go.
template <class F>
__device__ __forceinline__ double find_energies(const AdvantagePass& pass, const F& f,
                                                const RecurrenceQuad& quad) {
  if (quad.which == 0) return 0;
  const ColumnView* const column = pass.batch.column;
  const Quad old = load_floats(column[kOldLogprobInput], quad.first);
  const Quad squared = load_floats(column[kSumPiSquaredInput], quad.first);
  const bool corrected = column[kRolloutIsWeightsInput].data != nullptr;
  const Quad weights = corrected ? load_floats(column[kRolloutIsWeightsInput], quad.first) : Quad{};
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    const double energy =
        quad.live >> j & 1 ? f.energy(old[j], squared[j], corrected ? weights[j] : 1.0f) : 0.0;
    if (quad.which >> j & 1) pass.to_go[quad.first + j] = energy;
    sum += energy;
  }
  return sum;
}

// Computes the sums over each tile, and the energies of its tokens. Reports inputs that are not finite.
template <class F>
__global__ void __launch_bounds__(kThreads, kRecurrenceBlocks)
    baseline_sums_kernel(const AdvantagePass pass, const F f) {
  const int lane = threadIdx.x % kWarp;
  const DecayPowers powers(RewardToGo::decay, lane);
  for_tiles(pass, [&](const RowRange& row, int64_t at, int64_t index) {
    RecurrenceQuad quad = load_tile<RewardToGo, true, Reuse::kLater>(pass, row, at);
    const bool rewarded = look_ahead<RewardToGo>(pass, row, at, quad).rewarded;
    reward_last(pass, row, rewarded, &quad);
    const QuadTerms<RewardToGo> terms({}, quad, 0);
    const double to_go = __shfl_sync(kAllLanes, scan_warp(terms.suffix, powers, lane), 0);
    const double weight = sum_up_to(find_energies(pass, f, quad), lane);
    const int64_t place = sum_up_to(__popc(quad.live), lane);
    if (lane == kWarp - 1) pass.baseline_tiles[index] = {to_go, weight, place, rewarded};
  });
}

// Adds the numbers of 32 lanes to a sum, one after the other. Replaces each number with the sum before it,
// and returns the sum after the last. A lane whose pointer is null has the number 0.
template <class T>
__device__ __forceinline__ T carry_on(T* mine, T sum, int lane) {
  const T x = mine ? *mine : T{};
  T before{};
#pragma unroll
  for (int k = 0; k < kWarp; ++k) {
    if (k == lane) before = sum;
    sum += __shfl_sync(kAllLanes, x, k);
  }
  if (mine) *mine = before;
  return sum;
}

// Replaces the sums over each tile with those over the tiles after it (to_go) and before it (weight
// and place). Finds the number of unmasked tokens of each row. One warp computes one row.
static __global__ void __launch_bounds__(kThreads) baseline_chain_kernel(const AdvantagePass pass) {
  const Layout& layout = pass.batch.layout;
  const int lane = threadIdx.x % kWarp;
  for (int64_t index = first_warp(); index < layout.rows; index += all_warps()) {
    const RowRange row(layout, index);
    BaselineTile* const tiles = pass.baseline_tiles + first_tile(layout, index);
    const int64_t n = count_tiles(row);
    double to_go = 0, weight = 0;
    int64_t place = 0;
    for (int64_t i = lane; i - lane < n; i += kWarp) {
      BaselineTile* const from_end = i < n ? tiles + (n - 1 - i) : nullptr;
      to_go = carry_on(from_end ? &from_end->to_go : nullptr, to_go, lane);
      BaselineTile* const from_begin = i < n ? tiles + i : nullptr;
      weight = carry_on(from_begin ? &from_begin->weight : nullptr, weight, lane);
      place = carry_on(from_begin ? &from_begin->place : nullptr, place, lane);
    }
    if (lane == 0) pass.row_tokens[index] = static_cast<double>(place);
  }
}

// Computes the rewards to go, and the sums of the energies at the places.
template <class F>
__global__ void __launch_bounds__(kThreads, kRecurrenceBlocks)
    energy_kernel(const AdvantagePass pass, const F) {
  const int lane = threadIdx.x % kWarp;
  const DecayPowers powers(RewardToGo::decay, lane);
  for_tiles(pass, [&](const RowRange& row, int64_t at, int64_t index) {
    const BaselineTile tile = pass.baseline_tiles[index];
    RecurrenceQuad quad = load_tile<RewardToGo, false, Reuse::kNever>(pass, row, at);
    reward_last(pass, row, tile.rewarded, &quad);
    const QuadTerms<RewardToGo> terms({}, quad, 0);
    double to_go[kQuad];
    double x = x_after_lane(scan_warp(terms.suffix, powers, lane), powers, lane, tile.to_go);
#pragma unroll
    for (int j = kQuad - 1; j >= 0; --j) to_go[j] = x += terms.term[j];

    double energies[kQuad];
    double sum = 0;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      energies[j] = quad.which >> j & 1 ? pass.to_go[quad.first + j] : 0.0;
      sum += energies[j];
    }
    double weight = tile.weight + (sum_up_to(sum, lane) - sum);
    int64_t place = tile.place + unmasked_before(quad.live, lane);
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      const bool is_live = (quad.live >> j & 1) != 0;
      weight += energies[j];
      if (quad.which >> j & 1) pass.to_go[quad.first + j] = to_go[j];
      if (F::traits.skips_masked ? !is_live : (quad.which >> j & 1) == 0) continue;
      const int64_t to = F::traits.skips_masked ? row.begin + place++ : quad.first + j;
      pass.weights[to] = is_live ? weight : 0.0;
      pass.weighted[to] = is_live ? weight * to_go[j] : 0.0;
    }
  });
}

// Returns the number of chunks into which baseline_kernel() divides its work. A chunk is 32 places of a
// group.
PL_FN int64_t baseline_chunks(const AdvantagePass& pass) {
  return pass.groups.size * ((pass.batch.layout.row_length + kWarp - 1) / kWarp);
}

// Computes the baselines of each group, and stores each row's baselines in place of its weights.
template <class F>
__global__ void __launch_bounds__(kThreads) baseline_kernel(const AdvantagePass pass, const F f) {
  const Layout& layout = pass.batch.layout;
  const int64_t chunks = baseline_chunks(pass);
  for (int64_t chunk = first_warp(); chunk < chunks; chunk += all_warps()) {
    const int64_t group = chunk % pass.groups.size;
    const int64_t place = chunk / pass.groups.size * kWarp + threadIdx.x % kWarp;
    const int64_t* const members = pass.groups.members + pass.groups.offsets[group];
    const int64_t size = pass.groups.offsets[group + 1] - pass.groups.offsets[group];
    const auto tokens_of = [&](int64_t row) { return static_cast<int64_t>(pass.row_tokens[row]); };
    const auto end_of = [&](int64_t row) {
      return F::traits.skips_masked ? tokens_of(row) : layout.length(row);
    };
    BaselineGroup lengths;
    double weights = 0, weighted = 0;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t row = members[i];
      if (!F::traits.skips_masked || end_of(row) > 0) lengths.add(tokens_of(row));
      if (place >= end_of(row)) continue;
      weights += pass.weights[layout.begin(row) + place];
      weighted += pass.weighted[layout.begin(row) + place];
    }
    const double baseline = f.baseline(weighted, weights);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t row = members[i];
      const int64_t end = end_of(row);
      if (place < end)
        pass.weights[layout.begin(row) + place] =
            place < f.compared_places(lengths, tokens_of(row), end) ? baseline : 0.0;
    }
  }
}

// Writes the advantages and the returns.
template <class F>
__global__ void __launch_bounds__(kThreads) subtract_kernel(const AdvantagePass pass, const F) {
  const int lane = threadIdx.x % kWarp;
  for_tiles(pass, [&](const RowRange& row, int64_t at, int64_t index) {
    const int64_t i = at + lane * kQuad;
    const unsigned which = i < row.end ? bits_within(i, row.begin, row.end) : 0;
    const unsigned live = which != 0 ? load_mask<Reuse::kNever>(pass.batch.mask, i) & which : 0;
    int64_t place = 0;
    if (F::traits.skips_masked) place = pass.baseline_tiles[index].place + unmasked_before(live, lane);
    float advantages[kQuad], returns[kQuad];
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      const bool is_live = (live >> j & 1) != 0;
      const double to_go = which >> j & 1 ? pass.to_go[i + j] : 0.0;
      const int64_t from = F::traits.skips_masked ? row.begin + place : i + j;
      place += is_live ? 1 : 0;
      advantages[j] = is_live ? static_cast<float>(to_go - pass.weights[from]) : 0.0f;
      returns[j] = static_cast<float>(to_go);
    }
    store_quad(pass.advantages, i, which, advantages);
    if (pass.returns) store_quad(pass.returns, i, which, returns);
  });
}

}  // namespace policy_loss::cuda

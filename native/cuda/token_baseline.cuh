// The kernels of functions with a baseline per token (advantage/token_baseline.h). The first computes each
// row's sums, the second the baselines of each group, and the third the advantages. A warp computes a row,
// and four neighbouring tokens of it per lane.
#pragma once

#include "cuda/recurrence.cuh"

namespace policy_loss::cuda {

constexpr unsigned kBaselineColumns =
    reads(kTokenRewards) | reads(kSampledLogprob) | reads(kSumPiSquared) | reads(kImportanceWeights);

// The sum of the rewards of the unmasked tokens from a token to the end of its row, as a recurrence.
struct RewardToGo {
  static constexpr RecurrenceTraits traits{};
  static constexpr double decay = 1.0;

  PL_FN double term(const RecurrenceToken& t) const { return t.unmasked ? t.reward : 0.0; }
};

// Computes the rewards to go of a row.
__device__ __forceinline__ void find_rewards_to_go(const AdvantagePass& pass, int64_t row, int64_t begin,
                                                   int64_t end) {
  const RewardToGo f;
  const int lane = threadIdx.x % kWarp;
  const DecayPowers powers(f.decay, lane);
  const int64_t aligned = begin / kQuad * kQuad;
  bool reward_waits = !pass.batch.column[kTokenRewards].data;
  // A single warp does not communicate, so it does not use this memory.
  __shared__ double unused_sums[kWarps];
  __shared__ int unused_flags[kWarps];
  double carried = 0;
  for (int64_t at = end > begin ? aligned + (end - 1 - aligned) / kStretch * kStretch : aligned - 1;
       at >= aligned; at -= kStretch) {
    RecurrenceQuad quad = load_recurrence_quad<RewardToGo>(pass, row, begin, end, at + lane * kQuad);
    if (reward_waits) quad.rewarded = last_unmasked<1>(quad.live, lane, 0, unused_flags, &reward_waits);
    double terms[kQuad];
    double suffix = 0;
#pragma unroll
    for (int j = kQuad - 1; j >= 0; --j) {
      terms[j] = quad.which >> j & 1 ? f.term(quad.token(j, end, pass.rewards, row)) : 0.0;
      suffix += terms[j];
    }
    double x = scan_back<1>(suffix, powers, lane, 0, unused_sums, &carried);
#pragma unroll
    for (int j = kQuad - 1; j >= 0; --j) {
      x += terms[j];
      if (quad.which >> j & 1) pass.to_go[quad.first + j] = x;
    }
  }
}

// Returns the sum of x over the lanes before this one, and adds the sum over all lanes to *carried.
template <class T>
__device__ __forceinline__ T sum_before(T x, int lane, T* carried) {
  T sum = x;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T before = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= distance) sum += before;
  }
  const T all = __shfl_sync(kAllLanes, sum, kWarp - 1);
  const T result = *carried + (sum - x);
  *carried += all;
  return result;
}

// Visits the tokens of a row from its first. Calls visit(i, which, live, &place) for each four tokens; i is
// the first of them. `place` is the number of unmasked tokens before them. Returns the number of the row's
// unmasked tokens.
template <class Visit>
__device__ __forceinline__ int visit_forwards(const AdvantagePass& pass, int64_t begin, int64_t end,
                                              Visit visit) {
  const int lane = threadIdx.x % kWarp;
  int unmasked = 0;
  for (int64_t at = begin / kQuad * kQuad; at < end; at += kStretch) {
    const int64_t i = at + lane * kQuad;
    const unsigned which = i < end ? bits_within(i, begin, end) : 0;
    const unsigned live = which != 0 ? load_mask<Reuse::kLater>(pass.batch.mask, i) & which : 0;
    const int place = sum_before(__popc(live), lane, &unmasked);
    visit(i, which, live, place);
  }
  return unmasked;
}

// Computes the energy of the tokens of each row, and stores its sums at the places.
template <class F>
__global__ void __launch_bounds__(kThreads) energy_kernel(const AdvantagePass pass, const F f) {
  const Layout& layout = pass.batch.layout;
  const int lane = threadIdx.x % kWarp;
  for (int64_t row = first_warp(); row < layout.rows; row += all_warps()) {
    const int64_t begin = layout.begin(row);
    const int64_t end = begin + layout.length(row);
    find_rewards_to_go(pass, row, begin, end);
    double weight = 0;
    const int unmasked =
        visit_forwards(pass, begin, end, [&](int64_t i, unsigned which, unsigned live, int place) {
          double energies[kQuad] = {};
          double sum = 0;
          if (which != 0) {
            const Quad old = load_floats<Reuse::kNever>(pass.batch.column[kSampledLogprob], i);
            const Quad squared = load_floats<Reuse::kNever>(pass.batch.column[kSumPiSquared], i);
            const bool corrected = pass.batch.column[kImportanceWeights].data != nullptr;
            const Quad weights =
                corrected ? load_floats<Reuse::kNever>(pass.batch.column[kImportanceWeights], i) : Quad{};
#pragma unroll
            for (int j = 0; j < kQuad; ++j) {
              if (live >> j & 1) energies[j] = f.energy(old[j], squared[j], corrected ? weights[j] : 1.0f);
              sum += energies[j];
            }
          }
          double x = sum_before(sum, lane, &weight);
#pragma unroll
          for (int j = 0; j < kQuad; ++j) {
            const bool is_live = (live >> j & 1) != 0;
            x += energies[j];
            if (F::traits.skips_masked ? !is_live : (which >> j & 1) == 0) continue;
            const int64_t at = F::traits.skips_masked ? begin + place++ : i + j;
            pass.weights[at] = is_live ? x : 0.0;
            pass.weighted[at] = is_live ? x * pass.to_go[i + j] : 0.0;
          }
        });
    if (lane == 0) pass.row_tokens[row] = unmasked;
  }
}

// Returns the number of pieces into which baseline_kernel() divides its work. A piece is 32 places of a
// group.
PL_FN int64_t baseline_pieces(const AdvantagePass& pass) {
  return pass.groups.size * ((pass.batch.layout.row_length + kWarp - 1) / kWarp);
}

// Computes the baselines of each group, and stores each row's baselines in place of its weights.
template <class F>
__global__ void __launch_bounds__(kThreads) baseline_kernel(const AdvantagePass pass, const F f) {
  const Layout& layout = pass.batch.layout;
  const int64_t pieces = baseline_pieces(pass);
  for (int64_t piece = first_warp(); piece < pieces; piece += all_warps()) {
    const int64_t group = piece % pass.groups.size;
    const int64_t place = piece / pass.groups.size * kWarp + threadIdx.x % kWarp;
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
  const Layout& layout = pass.batch.layout;
  for (int64_t row = first_warp(); row < layout.rows; row += all_warps()) {
    const int64_t begin = layout.begin(row);
    visit_forwards(pass, begin, begin + layout.length(row),
                   [&](int64_t i, unsigned which, unsigned live, int place) {
                     float advantages[kQuad], returns[kQuad];
#pragma unroll
                     for (int j = 0; j < kQuad; ++j) {
                       const bool is_live = (live >> j & 1) != 0;
                       const double to_go = which >> j & 1 ? pass.to_go[i + j] : 0.0;
                       const int64_t at = F::traits.skips_masked ? begin + place : i + j;
                       place += is_live ? 1 : 0;
                       advantages[j] = is_live ? static_cast<float>(to_go - pass.weights[at]) : 0.0f;
                       returns[j] = static_cast<float>(to_go);
                     }
                     store_quad(pass.advantages, i, which, advantages);
                     if (pass.returns) store_quad(pass.returns, i, which, returns);
                   });
  }
}

}  // namespace policy_loss::cuda

// The sums over a tile of logits, relative to its largest logit.
#pragma once

#include "cpu/logits_tile.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The logits after a tile, whose largest is found while the terms of the tile are added up. So memory is read
// at an even rate.
struct NextTile {
  const float* z;  // any logits if n is 0
  int n;           // a multiple of kSumLanes; 0 if the largest logit is not wanted
  float largest;   // the result
};

// Returns the tile that begins at a logit, or some of the logits z with n = 0.
inline NextTile next_tile(const LogitsRow& row, int64_t first, int64_t last, const float* z) {
  const int n = static_cast<int>(last - first < kLogitsTile ? last - first : kLogitsTile);
  const float* const later = row.softcap > 0 ? nullptr : in_place(row, first, n);
  return later && n > 0 ? NextTile{later, n, 0} : NextTile{z, 0, 0};
}

// Adds up the terms of n logits, none of which is larger than `max`, in kSumLanes partial sums. Returns the
// sum of e^d·d if with_entropy is set, otherwise 0. If keeps_terms is set, writes the terms to `saved`.
template <bool with_entropy, bool keeps_terms>
PL_SHARED double sum_terms(const float* z, int n, float max, float log2_factor, const Ahead& ahead,
                           float* saved, LaneSum<float>* totals, NextTile* next) {
  // The logits of the next tile are prefetched this many logits before they are compared.
  constexpr int kLead = keeps_terms ? 512 : 1024;
  static_assert(kGranule % kSumLanes == 0);
  const float* const later = next->z;
  const int last = next->n > 0 ? next->n - kSumLanes : 0;
  const float least = least_distance(log2_factor);
  LaneSum<float> weights;
  alignas(64) float total[kSumLanes] = {}, weighted[kSumLanes] = {}, most[kSumLanes];
  for (float& each : most) each = -kInfinity;
  for (int at = 0; at < n; at += kSumLanes) {
    ahead.read<keeps_terms>(at + kLead);
    ahead.read<keeps_terms>(at + kLead + kSumLanes / 2);
    if constexpr (keeps_terms)
      ahead.read_far(at);
    else
      fetch<1, 0>(later + at, 64);
    const float* const compared = later + (at < last ? at : last);
    PL_FOR_LANES
    for (int l = 0; l < kSumLanes; ++l) {
      most[l] = compared[l] > most[l] ? compared[l] : most[l];
      const float distance = softmax_distance(z[at + l], max, least);
      const float e = exp2_of_product(distance, log2_factor, 1.0f);
      total[l] += e;
      if constexpr (keeps_terms) saved[at + l] = e;
      if constexpr (with_entropy) weighted[l] = fma(e, distance, weighted[l]);
    }
  }
  totals->load(total);
  next->largest = largest_of_lanes(most, kSumLanes);
  if constexpr (!with_entropy) return 0;
  weights.load(weighted);
  return take(&weights) * log2_factor / kLog2E;
}

// Returns the sum of all terms but the largest logit's, if that is the only one that is not small. Its
// partial sum lost digits of the terms that were added to 1, so these are added up again without it. `saved`
// has the terms. If it is null, they are computed again.
inline __attribute__((noinline, cold)) double sum_without_largest(const float* z, const float* saved, int n,
                                                                  float max, float log2_factor,
                                                                  const Ahead& ahead,
                                                                  LaneSum<float>* totals) {
  int lane = 0;
  while (lane < kSumLanes - 1 && !(totals->lane[lane] >= 1)) ++lane;
  totals->lane[lane] = 0;
  LaneSum<float> again;
  int count = 0;
  if (saved) {
    for (int at = lane; at < n; at += kSumLanes)
      again.lane[count++ % kSumLanes] += saved[at] == 1 ? 0 : saved[at];
    return take(totals) + take(&again);
  }
  alignas(64) float others[kLogitsTile / kSumLanes];
  for (int at = lane; at < n; at += kSumLanes) others[count++] = z[at] == max ? -kInfinity : z[at];
  while (count % kSumLanes != 0) others[count++] = -kInfinity;
  NextTile none = {others, 0, 0};
  sum_terms<false, false>(others, count, max, log2_factor, ahead, nullptr, &again, &none);
  return take(totals) + take(&again);
}

// `max` is the largest logit. `saved` is null if the terms are not saved. It may be the logits themselves.
inline SoftmaxSums sum_tile(const float* z, int n, float max, float inverse_temperature, bool with_entropy,
                            const Ahead& ahead, float* saved, NextTile* next) {
  const auto sum = with_entropy ? saved ? sum_terms<true, true> : sum_terms<true, false>
                   : saved ? sum_terms<false, true>
                                : sum_terms<false, false>;
  const float log2_factor = static_cast<float>(kLog2E) * inverse_temperature;
  // If all logits are −Infinity, the sum of the terms is 0, or NaN if there is a NaN.
  const float center = max > -kInfinity ? max : 0.0f;
  LaneSum<float> totals;
  const double weighted = sum(z, n, center, log2_factor, ahead, saved, &totals, next);
  LaneSum<float> copy = totals;
  double rest = take(&copy) - 1;
  if (rest < 0.25 && max > -kInfinity)
    rest = sum_without_largest(z, saved, n, max, log2_factor, ahead, &totals);
  return {max, rest, weighted};
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

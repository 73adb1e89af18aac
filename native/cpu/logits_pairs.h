// Tiles of small bfloat16 logits: two logits at a time, of which one is the lower and one the upper half of a
// word of 32 bits. So no vector must be widened or narrowed. Terms are relative to a logit of 0, so the
// largest logit need not be known.
#pragma once

#include "cpu/logits_tile.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

constexpr int kPairs = kSumLanes / 2;

// A pair of logits or of gradients.
typedef uint32_t Pair __attribute__((may_alias, aligned(alignof(uint16_t))));

PL_FN float first_of(uint32_t pair) {
  return bits_float(static_cast<int32_t>(pair << 16));
}
PL_FN float second_of(uint32_t pair) {
  return bits_float(static_cast<int32_t>(pair & 0xffff0000u));
}
PL_FN uint32_t pair_of(float first, float second) {
  return bfloat16_in_upper_half(first) >> 16 | (bfloat16_in_upper_half(second) & 0xffff0000u);
}

// Replaces each of the largest magnitudes, as the bits of bfloat16 numbers, by that of a logit if it is
// larger.
template <int count>
PL_FN void add_magnitudes(const uint16_t* bits, uint16_t* most) {
  PL_FOR_EACH_SHORT(count)
  for (int l = 0; l < count; ++l) {
    const uint16_t magnitude = bits[l] & 0x7fff;
    most[l] = magnitude > most[l] ? magnitude : most[l];
  }
}

// Returns whether the exponents of all terms are small. This is false if there is a NaN.
inline PL_SHARED bool are_small(const uint16_t* most, int count, double inverse_temperature) {
  uint16_t largest = 0;
  for (int l = 0; l < count; ++l) largest = most[l] > largest ? most[l] : largest;
  // At a huge temperature, the products of terms and logits could overflow.
  const float most_of_all = float_of_bfloat16(largest);
  return most_of_all * kLog2E * inverse_temperature <= 60 && most_of_all <= 1e15f;
}

inline PL_SHARED bool has_small_logits(const uint16_t* bits, int n, double inverse_temperature) {
  alignas(64) uint16_t most[kGranule] = {};
  for (int at = 0; at < n; at += kGranule) add_magnitudes<kGranule>(bits + at, most);
  return are_small(most, kGranule, inverse_temperature);
}

// Returns the bits of a tile's logits if they can be computed in pairs, as long as they are small. Otherwise
// returns null.
inline const uint16_t* pairs_of(const LogitsRow& row, int64_t first, int n) {
  if (!kHasSpecialLoops || row.dtype != DType::kBFloat16 || row.token_ids || row.softcap > 0 ||
      n % kGranule != 0)
    return nullptr;
  return static_cast<const uint16_t*>(row.data) + first;
}

// Does the same as sum_terms() if the logits are small, and finds out whether they are.
template <bool with_entropy, bool keeps_terms>
PL_SHARED double sum_pairs(const uint16_t* bits, int n, double inverse_temperature, const Ahead& ahead,
                           float* saved, LaneSum<float>* totals, bool* small) {
  const float log2_factor = static_cast<float>(kLog2E * inverse_temperature);
  alignas(64) uint16_t most[kSumLanes] = {};
  const Pair* const pairs = reinterpret_cast<const Pair*>(bits);
  LaneSum<float> weights;
  alignas(64) float total[kSumLanes] = {}, weighted[kSumLanes] = {};
  for (int at = 0; at < n; at += kSumLanes) {
    ahead.read<true>(at);
    if constexpr (keeps_terms) ahead.read_far(at);
    add_magnitudes<kSumLanes>(bits + at, most);
    PL_FOR_EACH(kPairs)
    for (int l = 0; l < kPairs; ++l) {
      const uint32_t pair = pairs[at / 2 + l];
      const float x = first_of(pair), y = second_of(pair);
      const float a = short_exp2_of_product(x, log2_factor);
      const float b = short_exp2_of_product(y, log2_factor);
      total[l] += a;
      total[kPairs + l] += b;
      if constexpr (keeps_terms) {
        saved[at + l] = a;
        saved[at + kPairs + l] = b;
      }
      if constexpr (with_entropy) {
        weighted[l] = fma(a, x, weighted[l]);
        weighted[kPairs + l] = fma(b, y, weighted[kPairs + l]);
      }
    }
  }
  totals->load(total);
  *small = are_small(most, kSumLanes, inverse_temperature);
  if constexpr (!with_entropy) return 0;
  weights.load(weighted);
  return take(&weights) * log2_factor / kLog2E;
}

// Adds the sums of a tile to *sums. Returns false and adds nothing if the logits are not small, or if one
// logit may have most of the probability, because the sum without that logit's term then needs more digits.
// Also tells whether they are small.
inline bool add_pairs(const uint16_t* bits, int n, double inverse_temperature, bool with_entropy,
                      const Ahead& ahead, float* saved, SoftmaxSums* sums, bool* small) {
  const auto sum = with_entropy ? saved ? sum_pairs<true, true> : sum_pairs<true, false>
                   : saved ? sum_pairs<false, true>
                                : sum_pairs<false, false>;
  LaneSum<float> totals;
  const double weighted = sum(bits, n, inverse_temperature, ahead, saved, &totals, small);
  if (!*small) return false;
  LaneSum<float> copy = totals;
  const double total = take(&totals);
  if (largest_of_lanes(copy.lane, kSumLanes) > total / 2) return false;
  SoftmaxSums tile = {0, total - 1, weighted};
  if (total < 1e-3) {
    // The rest would lose digits, so it is taken relative to the logarithm of the total.
    const double log_total = ::log(total);
    tile = {log_total / inverse_temperature, 0, weighted / total - log_total};
  }
  add_sums(tile, inverse_temperature, sums);
  return true;
}

// Returns whether a factor of terms that are relative to a logit of 0 is neither so small nor so large that
// its products lack digits or overflow. `before` is the same factor of probabilities.
inline bool has_digits(float before, float factor) {
  return before == 0 || (absolute(factor) >= 1e-30f && absolute(factor) <= 1e15f);
}

// Returns the gradient of a small logit, where `gradient` is relative to a logit of 0.
template <bool with_entropy>
PL_FN float gradient_of_small(const SoftmaxGradient& gradient, float z) {
  return short_exp2_of_product(z, gradient.log2_factor) * by_term<with_entropy>(gradient, z);
}

// Do the same as gradient_tile() and gradient_of_terms(). `shared` is relative to a logit of 0.
template <bool with_entropy>
PL_SHARED void gradient_of_pairs(const SoftmaxGradient& shared, const uint16_t* bits, int n, uint16_t* out,
                                 const Ahead& ahead) {
  const SoftmaxGradient gradient = shared;
  const Pair* const pairs = reinterpret_cast<const Pair*>(bits);
  Pair* const results = reinterpret_cast<Pair*>(out);
  for (int at = 0; at < n; at += kSumLanes) {
    ahead.read<true>(at);
    PL_FOR_EACH(kPairs)
    for (int l = at / 2; l < at / 2 + kPairs; ++l) {
      const uint32_t pair = pairs[l];
      results[l] = pair_of(gradient_of_small<with_entropy>(gradient, first_of(pair)),
                           gradient_of_small<with_entropy>(gradient, second_of(pair)));
    }
  }
}

template <bool with_entropy>
PL_SHARED void gradient_of_paired_terms(const SoftmaxGradient& shared, const float* terms,
                                        const uint16_t* bits, int n, uint16_t* out,
                                        const Ahead& shared_ahead) {
  const SoftmaxGradient gradient = shared;
  const Ahead ahead = shared_ahead;
  const Pair* const pairs = reinterpret_cast<const Pair*>(bits);
  Pair* const results = reinterpret_cast<Pair*>(out);
  for (int at = 0; at < n; at += kSumLanes) {
    ahead.read_far(at);
    PL_FOR_EACH(kPairs)
    for (int l = 0; l < kPairs; ++l) {
      const uint32_t pair = pairs[at / 2 + l];
      results[at / 2 + l] =
          pair_of(terms[at + l] * by_term<with_entropy>(gradient, first_of(pair)),
                  terms[at + kPairs + l] * by_term<with_entropy>(gradient, second_of(pair)));
    }
  }
}

// Writes the gradient of small logits as bfloat16. `terms` is null if none were saved.
inline void write_gradient_of_pairs(const SoftmaxGradient& from_zero, const float* terms,
                                    const uint16_t* bits, int n, bool with_entropy, const Ahead& ahead,
                                    uint16_t* out) {
  if (terms)
    (with_entropy ? gradient_of_paired_terms<true> : gradient_of_paired_terms<false>)(from_zero, terms, bits,
                                                                                      n, out, ahead);
  else
    (with_entropy ? gradient_of_pairs<true> : gradient_of_pairs<false>)(from_zero, bits, n, out, ahead);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

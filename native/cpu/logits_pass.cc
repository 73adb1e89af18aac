#include "cpu/logits_pass.h"

#include "cpu/narrow.h"
#include "cpu/tile.h"

// Keeps code that several functions share from being repeated in each of them.
#define PL_SHARED __attribute__((noinline))

namespace policy_loss::inline POLICY_LOSS_TARGET {
namespace {

using cpu::kLogitsTile;
using cpu::LogitsRow;
using cpu::LogitsTerms;
using cpu::TermsOfTile;

constexpr int kWide = 2 * kVector;

// Precedes a loop over `count` numbers, a multiple of kVector, and has one vector step compute all of them.
// For Clang, PL_FOR_LANES would say so only of kSumLanes numbers. PL_FOR_EACH_SHORT is for 16-bit numbers, of
// which kWide fill a vector.
#if defined(__clang__)
#define PL_FOR_EACH(count) PL_LOOP(kVector, (count) / kVector)
#define PL_FOR_EACH_SHORT(count) PL_LOOP(kWide, (count) / kWide)
#else
#define PL_FOR_EACH(count) PL_FOR_LANES
#define PL_FOR_EACH_SHORT(count) PL_FOR_LANES
#endif

static_assert(cpu::kLogitsBlock % kBlock == 0 && kLogitsTile % cpu::kLogitsBlock == 0);

// Logits of one tile, followed by −Infinity up to a whole block. The buffer itself is padded like
// TileReader's buffers, because loops read one and write another.
struct alignas(64) Buffer {
  float of[kLogitsTile + 48];
};

// The memory that will be needed after a tile: the next tile and, if terms are kept, half a tile that will be
// needed about a row later. The loops over a tile prefetch it, so that memory is read while the processor
// computes.
class Ahead {
 public:
  // `position` is the index of the tile's first logit among those of the sums, which are followed by those of
  // the gradient.
  Ahead(const LogitsRow& row, int64_t first, const LogitsTerms& kept, int64_t position)
      : size_(size_of(row.dtype)),
        next_tile_(static_cast<const char*>(row.data) + (first + kLogitsTile) * size_),
        far_(next_tile_) {
    const int64_t far = lead(row.vocabulary * size_) / size_ + position / 2;
    if (far < row.vocabulary)
      far_ = static_cast<const char*>(row.data) + far * size_;
    else if (kept.next_row)
      far_ = static_cast<const char*>(kept.next_row) + (far - row.vocabulary) * size_;
  }
  // Prefetches the cache line of the logit that is `index` logits after the start of the next tile. The first
  // cache level has too few outstanding misses for float32 logits that come from memory.
  template <bool into_first_level>
  PL_FN void read(int index) const {
    __builtin_prefetch(next_tile_ + index * size_, 0, into_first_level ? 3 : 2);
  }
  // Prefetches the cache line of a logit that will be needed later. Half of the tile's indices have the same
  // line as others.
  PL_FN void read_far(int index) const { __builtin_prefetch(far_ + index / 2 * size_, 0, 2); }

 private:
  // How many bytes read_far() is ahead of the sums when they begin. It reads half a row during the sums and
  // half a row during the gradient. With a lead of a row, the next row has been read before its sums begin.
  // If two rows do not fit into the cache, the lead is half a row, and the last logits of a row are read just
  // before they are needed.
  static int64_t lead(int64_t row_bytes) {
    constexpr int64_t kShortRow = 256 << 10;
    return row_bytes <= kShortRow ? row_bytes : row_bytes / 2;
  }

  int64_t size_;
  const char* next_tile_;
  const char* far_;
};

PL_FN int padded(int n) {
  return (n + kBlock - 1) / kBlock * kBlock;
}

// Converts n numbers, a multiple of kBlock, to float32.
PL_SHARED void widen_blocks(const uint16_t* in, int n, DType dtype, float* out) {
  if (dtype == DType::kFloat16) {
    for (int at = 0; at < n; at += kWide) {
      PL_FOR_EACH(kWide)
      for (int l = 0; l < kWide; ++l) out[at + l] = float_of_half(in[at + l]);
    }
  } else {
    for (int at = 0; at < n; at += kWide) {
      PL_FOR_EACH(kWide)
      for (int l = 0; l < kWide; ++l) out[at + l] = float_of_bfloat16(in[at + l]);
    }
  }
}

// Returns the logits of the row's data, of type T, with the given indices of the support.
template <class T>
void gather(const LogitsRow& row, int64_t first, int n, T* out) {
  const T* const data = static_cast<const T*>(row.data);
  for (int i = 0; i < n; ++i) {
    // lib/ has checked the ids, but the caller may change them during the call.
    const uint32_t id = static_cast<uint32_t>(row.token_ids[first + i]);
    out[i] = data[id < row.vocabulary ? id : 0];
  }
}

PL_SHARED void pad(int n, float* out) {
  for (int i = n; i < padded(n); ++i) out[i] = -kInfinity;
}

// Returns the logits [first, first + n) in the row's data, or null if they must be converted, copied or
// padded.
const float* in_place(const LogitsRow& row, int64_t first, int64_t n) {
  if (row.dtype != DType::kFloat32 || row.token_ids || n % kBlock != 0) return nullptr;
  return static_cast<const float*>(row.data) + first;
}

// Returns the logits [first, first + n). Reads them in place if possible, otherwise converts or copies them
// to the buffer.
PL_SHARED const float* read(const LogitsRow& row, int64_t first, int n, Buffer* buffer) {
  float* const out = buffer->of;
  if (const float* const z = in_place(row, first, n)) return z;
  if (row.dtype == DType::kFloat32) {
    const float* const in = static_cast<const float*>(row.data) + first;
    if (row.token_ids)
      gather(row, first, n, out);
    else
      memcpy(out, in, n * sizeof(float));
  } else {
    const uint16_t* in = static_cast<const uint16_t*>(row.data) + first;
    alignas(64) uint16_t bits[kLogitsTile];
    int in_place = 0;
    if (row.token_ids)
      gather(row, first, n, bits);
    else
      in_place = n / kBlock * kBlock;
    if (in_place > 0) widen_blocks(in, in_place, row.dtype, out);
    if (in_place < n) {
      if (!row.token_ids) memcpy(bits, in + in_place, (n - in_place) * sizeof *bits);
      memset(bits + n - in_place, 0, (padded(n) - n) * sizeof *bits);
      widen_blocks(bits, padded(n) - in_place, row.dtype, out + in_place);
    }
  }
  pad(n, out);
  return out;
}

PL_SHARED const float* cap(const float* x, int n, float softcap, Buffer* buffer) {
  const float inverse = 1.0f / softcap;
  for (int at = 0; at < padded(n); at += kVector) {
    PL_FOR_LANES_COMPACTLY
    for (int l = 0; l < kVector; ++l) buffer->of[at + l] = softcapped(x[at + l], softcap, inverse);
  }
  pad(n, buffer->of);
  return buffer->of;
}

// Returns the largest of the numbers in lanes, whose count is a power of two. Changes the lanes.
PL_SHARED float largest_of_lanes(float* most, int count) {
  for (int width = count / 2; width >= kVector; width /= 2) {
    for (int at = 0; at < width; at += kVector) {
      PL_FOR_LANES_COMPACTLY
      for (int l = at; l < at + kVector; ++l) most[l] = most[l + width] > most[l] ? most[l + width] : most[l];
    }
  }
  float result = most[0];
  for (int l = 1; l < kVector; ++l) result = most[l] > result ? most[l] : result;
  return result;
}

float largest(const float* z, int n) {
  // The loop has twice the usual number of lanes, because each step only waits for the one before.
  constexpr int kLanes = 2 * kSumLanes;
  static_assert(kBlock % kLanes == 0);
  alignas(64) float most[kLanes];
  for (float& each : most) each = -kInfinity;
  for (int at = 0; at < n; at += kLanes) {
    PL_FOR_EACH(kLanes)
    for (int l = 0; l < kLanes; ++l) most[l] = z[at + l] > most[l] ? z[at + l] : most[l];
  }
  return largest_of_lanes(most, kLanes);
}

// Returns the total of the partial sums, and sets them to 0.
PL_SHARED double take(LaneSum<float>* sums) {
  return sums->take();
}

// The logits after a tile, whose largest is found while the terms of the tile are added up. So memory is read
// at an even rate.
struct NextTile {
  const float* z;  // any logits if n is 0
  int n;           // a multiple of kSumLanes; 0 if the largest logit is not wanted
  float largest;   // the result
};

// Returns the tile that begins at a logit, or some of the logits z with n = 0.
NextTile next_tile(const LogitsRow& row, int64_t first, int64_t last, const float* z) {
  const int n = static_cast<int>(last - first < kLogitsTile ? last - first : kLogitsTile);
  const float* const later = row.softcap > 0 ? nullptr : in_place(row, first, n);
  return later && n > 0 ? NextTile{later, n, 0} : NextTile{z, 0, 0};
}

// Adds up the terms of n logits, none of which is larger than `max`, in kSumLanes partial sums. Returns the
// sum of e^d·d if with_entropy is set, otherwise 0. If keeps_terms is set, writes the terms to `kept`.
template <bool with_entropy, bool keeps_terms>
PL_SHARED double sum_terms(const float* z, int n, float max, float log2_factor, const Ahead& ahead,
                           float* kept, LaneSum<float>* totals, NextTile* next) {
  // The logits of the next tile are prefetched this many logits before they are compared.
  constexpr int kLead = keeps_terms ? 512 : 1024;
  static_assert(kBlock % kSumLanes == 0);
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
      if constexpr (keeps_terms) kept[at + l] = e;
      if constexpr (with_entropy) weighted[l] = fma(e, distance, weighted[l]);
    }
  }
  totals->load(total);
  next->largest = largest_of_lanes(most, kSumLanes);
  if constexpr (!with_entropy) return 0;
  weights.load(weighted);
  return take(&weights) * log2_factor / kLog2E;
}

// The following functions compute tiles of small bfloat16 logits: two logits at a time, of which one is the
// lower and one the upper half of a word of 32 bits. So no vector must be widened or narrowed. Terms are
// relative to a logit of 0, so the largest logit need not be known.
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
PL_SHARED bool are_small(const uint16_t* most, int count, double inverse_temperature) {
  uint16_t largest = 0;
  for (int l = 0; l < count; ++l) largest = most[l] > largest ? most[l] : largest;
  // At a huge temperature, the products of terms and logits could overflow.
  const float most_of_all = float_of_bfloat16(largest);
  return most_of_all * kLog2E * inverse_temperature <= 60 && most_of_all <= 1e15f;
}

PL_SHARED bool has_small_logits(const uint16_t* bits, int n, double inverse_temperature) {
  alignas(64) uint16_t most[kBlock] = {};
  for (int at = 0; at < n; at += kBlock) add_magnitudes<kBlock>(bits + at, most);
  return are_small(most, kBlock, inverse_temperature);
}

// Returns the bits of a tile's logits if they can be computed in pairs, as long as they are small. Otherwise
// returns null.
const uint16_t* pairs_of(const LogitsRow& row, int64_t first, int n) {
  if (!kHasSpecialLoops || row.dtype != DType::kBFloat16 || row.token_ids || row.softcap > 0 ||
      n % kBlock != 0)
    return nullptr;
  return static_cast<const uint16_t*>(row.data) + first;
}

// Does the same as sum_terms() if the logits are small, and finds out whether they are.
template <bool with_entropy, bool keeps_terms>
PL_SHARED double sum_pairs(const uint16_t* bits, int n, double inverse_temperature, const Ahead& ahead,
                           float* kept, LaneSum<float>* totals, bool* small) {
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
        kept[at + l] = a;
        kept[at + kPairs + l] = b;
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
bool add_pairs(const uint16_t* bits, int n, double inverse_temperature, bool with_entropy, const Ahead& ahead,
               float* kept, SoftmaxSums* sums, bool* small) {
  const auto sum = with_entropy ? kept ? sum_pairs<true, true> : sum_pairs<true, false>
                   : kept ? sum_pairs<false, true>
                                : sum_pairs<false, false>;
  LaneSum<float> totals;
  const double weighted = sum(bits, n, inverse_temperature, ahead, kept, &totals, small);
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
bool has_digits(float before, float factor) {
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

// Writes the gradient of small logits as bfloat16. `terms` is null if none were kept.
void write_gradient_of_pairs(const SoftmaxGradient& from_zero, const float* terms, const uint16_t* bits,
                             int n, bool with_entropy, const Ahead& ahead, uint16_t* out) {
  if (terms)
    (with_entropy ? gradient_of_paired_terms<true> : gradient_of_paired_terms<false>)(from_zero, terms, bits,
                                                                                      n, out, ahead);
  else
    (with_entropy ? gradient_of_pairs<true> : gradient_of_pairs<false>)(from_zero, bits, n, out, ahead);
}

// Returns the sum of all terms but the largest logit's, if that is the only one that is not small. Its
// partial sum lost digits of the terms that were added to 1, so these are added up again without it. `kept`
// has the terms. If it is null, they are computed again.
__attribute__((noinline, cold)) double sum_without_largest(const float* z, const float* kept, int n,
                                                           float max, float log2_factor, const Ahead& ahead,
                                                           LaneSum<float>* totals) {
  int lane = 0;
  while (lane < kSumLanes - 1 && !(totals->lane[lane] >= 1)) ++lane;
  totals->lane[lane] = 0;
  LaneSum<float> again;
  int count = 0;
  if (kept) {
    for (int at = lane; at < n; at += kSumLanes)
      again.lane[count++ % kSumLanes] += kept[at] == 1 ? 0 : kept[at];
    return take(totals) + take(&again);
  }
  alignas(64) float others[kLogitsTile / kSumLanes];
  for (int at = lane; at < n; at += kSumLanes) others[count++] = z[at] == max ? -kInfinity : z[at];
  while (count % kSumLanes != 0) others[count++] = -kInfinity;
  NextTile none = {others, 0, 0};
  sum_terms<false, false>(others, count, max, log2_factor, ahead, nullptr, &again, &none);
  return take(totals) + take(&again);
}

// `max` is the largest logit. `kept` is null if the terms are not kept. It may be the logits themselves.
SoftmaxSums sum_tile(const float* z, int n, float max, float inverse_temperature, bool with_entropy,
                     const Ahead& ahead, float* kept, NextTile* next) {
  const auto sum = with_entropy ? kept ? sum_terms<true, true> : sum_terms<true, false>
                   : kept ? sum_terms<false, true>
                                : sum_terms<false, false>;
  const float log2_factor = static_cast<float>(kLog2E) * inverse_temperature;
  // If all logits are −Infinity, the sum of the terms is 0, or NaN if there is a NaN.
  const float center = max > -kInfinity ? max : 0.0f;
  LaneSum<float> totals;
  const double weighted = sum(z, n, center, log2_factor, ahead, kept, &totals, next);
  LaneSum<float> copy = totals;
  double rest = take(&copy) - 1;
  if (rest < 0.25 && max > -kInfinity)
    rest = sum_without_largest(z, kept, n, max, log2_factor, ahead, &totals);
  return {max, rest, weighted};
}

// If is_small is set, the logits are small and `shared` is relative to a logit of 0.
template <bool with_entropy, bool is_small>
PL_SHARED void gradient_tile(const SoftmaxGradient& shared, const float* z, int n, float* out,
                             const Ahead& ahead) {
  const SoftmaxGradient gradient = shared;
  const float least = least_distance(gradient.log2_factor);
  for (int at = 0; at < n; at += kVector) {
    ahead.read<false>(at);
    PL_FOR_LANES_COMPACTLY
    for (int l = at; l < at + kVector; ++l) {
      out[l] = is_small ? gradient_of_small<with_entropy>(gradient, z[l])
                        : gradient_of<with_entropy>(gradient, least, z[l]);
    }
  }
}

// Does the same with the terms of the sums. `shared` is relative to the tile's reference.
template <bool with_entropy>
PL_SHARED void gradient_of_terms(const SoftmaxGradient& shared, const float* terms, const float* z, int n,
                                 float* out, const Ahead& shared_ahead) {
  const SoftmaxGradient gradient = shared;
  const Ahead ahead = shared_ahead;
  for (int at = 0; at < n; at += kWide) {
    ahead.read_far(at);
    PL_FOR_EACH(kWide)
    for (int l = 0; l < kWide; ++l)
      out[at + l] = gradient_of_term<with_entropy>(gradient, terms[at + l], z[at + l]);
  }
}

// Writes the gradient of logits. `terms` is null if none were kept; otherwise `shared` is relative to their
// reference. If is_small is set, `shared` is relative to a logit of 0.
void write_gradient(const SoftmaxGradient& shared, const float* terms, bool is_small, const float* z, int n,
                    bool with_entropy, const Ahead& ahead, float* out) {
  if (terms)
    (with_entropy ? gradient_of_terms<true> : gradient_of_terms<false>)(shared, terms, z, n, out, ahead);
  else if (is_small)
    (with_entropy ? gradient_tile<true, true> : gradient_tile<false, true>)(shared, z, n, out, ahead);
  else
    (with_entropy ? gradient_tile<true, false> : gradient_tile<false, false>)(shared, z, n, out, ahead);
}

PL_SHARED void multiply_by_softcap_derivative(const float* x, int n, float softcap, float* grad) {
  const float inverse = 1.0f / softcap;
  for (int at = 0; at < n; at += kVector) {
    PL_FOR_LANES_COMPACTLY
    for (int l = 0; l < kVector; ++l) grad[at + l] *= softcap_derivative(x[at + l], inverse);
  }
}

}  // namespace

void sum_logits(const LogitsRow& row, bool with_entropy, int64_t first, int64_t last, const LogitsTerms& kept,
                SoftmaxSums* sums, double* target) {
  Buffer wide, capped;
  NextTile next = {};
  // Whether the last tile's logits were small. Then the next tile's sums are computed without a check first,
  // unless terms are kept: the check then reads the tile from the second-level cache into the first.
  bool expects_small = true;
  const double inverse_temperature = 1 / row.temperature;
  for (int64_t at = first; at < last; at += kLogitsTile) {
    const int n = static_cast<int>(last - at < kLogitsTile ? last - at : kLogitsTile);
    const Ahead ahead(row, at, kept, at);
    float* const terms = kept.term ? kept.term + at : nullptr;
    const bool has_target = row.target >= at && row.target < at + n;
    const uint16_t* const pairs = pairs_of(row, at, n);
    if (pairs && ((expects_small && !terms) || has_small_logits(pairs, n, inverse_temperature)) &&
        add_pairs(pairs, n, inverse_temperature, with_entropy, ahead, terms, sums, &expects_small)) {
      if (terms) kept.tile[at / kLogitsTile] = {0, 1};
      if (has_target) *target = float_of_bfloat16(pairs[row.target - at]);
      continue;
    }
    const float* z = read(row, at, n, &wide);
    if (row.softcap > 0) z = cap(z, n, row.softcap, &capped);
    // The terms may be written in place of the logits.
    if (has_target) *target = z[row.target - at];
    const float max = next.n > 0 ? next.largest : largest(z, padded(n));
    next = next_tile(row, at + n, last, z);
    const SoftmaxSums tile = sum_tile(z, padded(n), max, static_cast<float>(inverse_temperature),
                                      with_entropy, ahead, terms, &next);
    if (terms) kept.tile[at / kLogitsTile] = {static_cast<float>(tile.max), 0};
    add_sums(tile, inverse_temperature, sums);
  }
}

void logits_gradient(const LogitsRow& row, const SoftmaxGradient& gradient, bool with_entropy, int64_t first,
                     int64_t last, const LogitsTerms& kept, void* out, DType out_dtype) {
  Buffer wide, capped, buffer;
  const SoftmaxGradient from_zero = relative_to(0, gradient);
  const bool allows_small = has_digits(gradient.by_logprob, from_zero.by_logprob) &&
                            has_digits(gradient.by_distance, from_zero.by_distance);
  const int64_t tiles = (last - first + kLogitsTile - 1) / kLogitsTile;
  for (int64_t i = 0; i < tiles; ++i) {
    // The sums, from which terms were kept, end with the last tile, so that one is still in the cache.
    const int64_t at = first + (kept.term ? tiles - 1 - i : i) * kLogitsTile;
    const int n = static_cast<int>(last - at < kLogitsTile ? last - at : kLogitsTile);
    const bool has_target = row.target >= at && row.target < at + n;
    const Ahead ahead(row, at, kept, row.vocabulary + i * kLogitsTile);
    const TermsOfTile tile = kept.term ? kept.tile[at / kLogitsTile] : TermsOfTile{};
    // Which formula computes a gradient must not depend on where it is written.
    const uint16_t* pairs = allows_small && (!kept.term || tile.in_pairs) ? pairs_of(row, at, n) : nullptr;
    if (pairs && !kept.term && !has_small_logits(pairs, n, 1 / row.temperature)) pairs = nullptr;
    if (pairs && out_dtype == DType::kBFloat16) {
      uint16_t* const grad = static_cast<uint16_t*>(out) + at;
      const float of_target =
          has_target ? gradient_of_target(
                           gradient, kept.term ? *kept.target : float_of_bfloat16(pairs[row.target - at]))
                     : 0.0f;
      const float* const terms = kept.term ? kept.term + at : nullptr;
      write_gradient_of_pairs(from_zero, terms, pairs, n, with_entropy, ahead, grad);
      if (has_target) grad[row.target - at] = bfloat16_of_float(of_target);
      continue;
    }
    const float* const terms = kept.term && !tile.in_pairs ? kept.term + at : nullptr;
    const bool reads_logits = with_entropy || row.softcap > 0 || !terms;
    const float* const x = reads_logits ? read(row, at, n, &wide) : terms;
    const float* const z = row.softcap > 0 ? cap(x, n, row.softcap, &capped) : x;
    // A gradient in place of the logits must not overwrite logits that are still needed.
    const bool direct = out_dtype == DType::kFloat32 && n % kBlock == 0 && z == x;
    float* const grad = direct ? static_cast<float*>(out) + at : buffer.of;
    const float of_target =
        has_target ? gradient_of_target(gradient, kept.term ? *kept.target : z[row.target - at]) : 0.0f;
    const SoftmaxGradient shared = terms   ? relative_to(tile.reference, gradient)
                                   : pairs ? from_zero
                                           : gradient;
    write_gradient(shared, terms, pairs != nullptr, z, padded(n), with_entropy, ahead, grad);
    if (has_target) grad[row.target - at] = of_target;
    if (row.softcap > 0) multiply_by_softcap_derivative(x, padded(n), row.softcap, grad);
    if (!direct) store_numbers(grad, n, out_dtype, out, at);
  }
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// The vectors of the CPU engine's loops: how many tokens one iteration computes, their masks, and their
// partial sums.
//
// Code that is compiled once per instruction set must not call functions of the C++ library that the compiler
// might not inline. The linker keeps only one copy of such a function for all instruction sets, and this
// machine may be unable to run that copy.
#pragma once

#include <cstring>

#include "engine/sums.h"
#include "math/scalar.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

constexpr int kTile = 1024;
// The length of a tile that several loops read. The processor keeps prefetching the columns of all these
// loops only if it switches between the loops often.
constexpr int kSharedTile = 512;
// The loops get only lengths that are multiples of kGranule, a granule, so that vectorised loops need no code
// for a remainder. The last tokens of a row are copied to buffers of this length. The rest of such a buffer
// counts as masked.
constexpr int kGranule = 64;

// The mask of one token as a bit pattern: all ones if the token is unmasked, 0 if it is masked. GCC fills one
// vector with the narrowest type in a loop, so the size of Lane determines how many tokens the loop computes
// side by side. With 8 bits, these are four vectors of floats, which is enough to hide the latency of
// arithmetic. For the longer vectors of AVX-512, two vectors of floats are enough, and the code is half as
// large.
#if defined(__AVX512F__)
using Lane = int16_t;
#else
using Lane = int8_t;
#endif

static_assert(kGranule % kSumLanes == 0 && kSumTokens % kTile == 0 && kTile % kSharedTile == 0);

// Precedes a loop over the kSumLanes partial sums, and has the compiler vectorise it. One vector iteration
// computes the whole loop, so that the partial sums stay in registers. Clang needs the numbers, because it
// would unroll a short loop before it vectorises. With the short vectors of SSE4, an iteration computes a
// quarter of the loop, because the code of the whole loop would be three times as large as that of AVX2.
//
// PL_FOR_LANES_COMPACTLY computes one vector per iteration. It is for loops over a single vector, and for
// loops whose code would be too large otherwise.
#if !defined(__clang__)
#define PL_FOR_LANES _Pragma("omp simd")
#define PL_FOR_LANES_COMPACTLY PL_FOR_LANES
#else
#define PL_PRAGMA(text) _Pragma(#text)
#define PL_LOOP(width, count)                                                                  \
  PL_PRAGMA(clang loop vectorize(assume_safety) vectorize_width(width) interleave_count(count) \
                unroll(disable))
#if defined(__AVX512F__)
#define PL_FOR_LANES PL_LOOP(16, 2)
#define PL_FOR_LANES_COMPACTLY PL_LOOP(16, 1)
#elif defined(__AVX__)
#define PL_FOR_LANES PL_LOOP(8, 4)
#define PL_FOR_LANES_COMPACTLY PL_LOOP(8, 1)
#elif defined(__SSE4_1__)
#define PL_FOR_LANES PL_LOOP(4, 2)
#define PL_FOR_LANES_COMPACTLY PL_LOOP(4, 1)
#else
#define PL_FOR_LANES PL_LOOP(4, 8)
#define PL_FOR_LANES_COMPACTLY PL_LOOP(4, 1)
#endif
#endif

// The bytes of the widest vector of the instruction set.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
// The floats in such a vector.
constexpr int kVector = kVectorBytes / sizeof(float);

// The partial sums of one sum.
template <class Number>
class alignas(64) LaneSum {
 public:
  Number lane[kSumLanes] = {};

  // Copy the partial sums to and from an array of kSumLanes numbers, in whole vectors. The loops read the
  // array as vectors, and a processor cannot forward several narrower stores to one load.
  PL_FN void store(Number* out) const {
    for (int v = 0; v < kVectors; ++v) reinterpret_cast<Vector*>(out)[v] = vectors()[v];
  }
  PL_FN void load(const Number* in) {
    for (int v = 0; v < kVectors; ++v)
      reinterpret_cast<Vector*>(lane)[v] = reinterpret_cast<const Vector*>(in)[v];
  }

  // Returns the total of the partial sums, and sets them to 0.
  PL_FN Number take() {
    Vector sums[kVectors];
    for (int v = 0; v < kVectors; ++v) sums[v] = vectors()[v];
    *this = {};
    for (int width = kVectors / 2; width > 0; width /= 2)
      for (int v = 0; v < width; ++v) sums[v] += sums[v + width];
    constexpr int wide = kSumLanes / kVectors;
    Number sum[wide];
    memcpy(sum, sums, sizeof sum);
    for (int width = wide / 2; width > 0; width /= 2)
      for (int l = 0; l < width; ++l) sum[l] += sum[l + width];
    return sum[0];
  }

 private:
  // It may alias the numbers of `lane`.
  typedef Number Vector __attribute__((vector_size(kVectorBytes), may_alias, aligned(sizeof(Number))));
  static constexpr int kVectors = kSumLanes * sizeof(Number) / sizeof(Vector);

  PL_FN const Vector* vectors() const { return reinterpret_cast<const Vector*>(lane); }
};

// Calls visit(lane, i) for every token i < n of a tile, where `lane` is the token's partial sum.
template <class Visit>
PL_FN void for_lanes(int n, Visit visit) {
  int at = 0;
  for (; at + kSumLanes <= n; at += kSumLanes) {
    PL_FOR_LANES
    for (int l = 0; l < kSumLanes; ++l) visit(l, at + l);
  }
  for (int l = 0; at + l < n; ++l) visit(l, at + l);
}

// Returns x if the token is unmasked. Otherwise returns 0, even if x is NaN or infinite. It works on the bits
// of x, because compilers generate slow code for a comparison with the mask's bytes.
PL_FN float if_unmasked(float x, int32_t lane) {
  return bits_float(float_bits(x) & lane);
}

// Returns x if the token is unmasked according to the mask's byte, otherwise 0. An expression that reads x
// only for unmasked tokens would become a branch per token where vectors have no masked loads.
template <class Number>
PL_FN Number if_unmasked_by(uint8_t mask, Number x) {
  return mask != 0 ? x : Number(0);
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

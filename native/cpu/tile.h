// A tile: up to kTile tokens of one row. Its columns stay in the L1 cache while the loops of the policy loss,
// the KL estimator and the entropy loss read them one after another.
#pragma once

#include <type_traits>

#include "cpu/lanes.h"
#include "cpu/prefetch.h"
#include "engine/batch.h"
#include "math/half.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Columns of 16-bit numbers. A loop converts each number in a register when it reads it. Converting the whole
// tile beforehand would be slower, because memory would not be read while the loop computes.
struct BFloat16s {
  const uint16_t* bits;
  PL_FN float operator[](int i) const { return float_of_bfloat16(bits[i]); }
  PL_FN BFloat16s operator+(int i) const { return {bits + i}; }
};
struct Float16s {
  const uint16_t* bits;
  PL_FN float operator[](int i) const { return float_of_half(bits[i]); }
  PL_FN Float16s operator+(int i) const { return {bits + i}; }
};

PL_FN void fetch_ahead(BFloat16s tokens) {
  fetch_ahead(tokens.bits);
}
PL_FN void fetch_ahead(Float16s tokens) {
  fetch_ahead(tokens.bits);
}

// The weights of the tokens of a tile if the loss has none.
struct Ones {
  alignas(64) float of[kTile];
  constexpr Ones() : of() {
    for (float& one : of) one = 1.0f;
  }
};
inline constexpr Ones kOnes;

// Whether there are loops for tiles without masked tokens, which need no mask, for 16-bit columns, and for
// whole segments of programs (see cpu/compiled_loops.h). They are faster than the loops for all tiles of
// float32 columns and for single instructions. SSE4 has only the latter, because its loops are the largest
// and few processors need them.
#if defined(__SSE4_1__) && !defined(__AVX__)
#define PL_SPECIAL_LOOPS 0
#else
#define PL_SPECIAL_LOOPS 1
#endif
constexpr bool kHasSpecialLoops = PL_SPECIAL_LOOPS;

// The columns and the mask of one tile.
struct TileColumns {
  const void* column[kColumns];  // of floats if dtype is kFloat32, otherwise of uint16_t
  DType dtype;
  const uint8_t* mask;
  // The mask for if_unmasked(), one Lane per token. Not valid if all_unmasked is set, or if tiles() was
  // called with MaskUse::kBytes.
  const Lane* lanes;
  bool all_unmasked;
  const float* weights;  // the column kTokenWeights, or ones if it is not read

  // Calls visit.operator()<masked>(), where `masked` tells whether to read the lanes.
  template <class Visit>
  PL_FN void with_mask(const Visit& visit) const {
    if constexpr (kHasSpecialLoops) {
      if (all_unmasked) return visit.template operator()<false>();
    }
    visit.template operator()<true>();
  }

  template <class Values>
  PL_FN Values get(int c) const {
    if constexpr (std::is_pointer_v<Values>)
      return static_cast<Values>(column[c]);
    else
      return {static_cast<const uint16_t*>(column[c])};
  }

  // Returns the columns of the tokens from number `first` of the tile on.
  PL_FN TileColumns from(int first) const {
    TileColumns rest = *this;
    for (const void*& c : rest.column)
      if (c) c = static_cast<const char*>(c) + first * size_of(dtype);
    if (mask) rest.mask += first;
    rest.lanes += first;
    rest.weights += first;
    return rest;
  }

  // Calls loop.operator()<Values>(), where Values is the type argument that get() needs for this tile's
  // dtype.
  template <class Loop>
  PL_FN auto with_type(const Loop& loop) const {
    if constexpr (kHasSpecialLoops) {
      if (dtype == DType::kBFloat16) return loop.template operator()<BFloat16s>();
      if (dtype == DType::kFloat16) return loop.template operator()<Float16s>();
    }
    return loop.template operator()<const float*>();
  }
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

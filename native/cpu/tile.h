// Tiles: how the CPU engine's inner loops read the columns and the mask of a batch.
//
// A tile is at most kTile tokens of one row. Its columns stay in the L1 cache while the row sums, the policy
// loss, the KL estimator and the entropy loss read them one after another.
//
// Code that is compiled once per instruction set must not call a function of the C++ library that the
// compiler could leave out of line. The linker keeps one copy of such a function for all builds, and the
// machine may be unable to run that copy.
#pragma once

#include <cstring>
#include <type_traits>

#include "engine/batch.h"
#include "math/half.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

constexpr int kTile = 1024;
// The tile length if several loops read a tile. The processor prefetches all columns only if each loop's turn
// is short.
constexpr int kSharedTile = 512;
// Tiles are multiples of this, so that vectorised loops need no remainder. The remaining tokens of a row are
// copied to zeroed buffers of this size.
constexpr int kBlock = 64;

// A column of 16-bit numbers. A loop that reads it widens each token in a register, which is faster than
// widening a tile beforehand: memory is then read while the loop computes.
struct BFloat16s {
  const uint16_t* bits;
  PL_FN float operator[](int i) const { return float_of_bfloat16(bits[i]); }
};
struct Float16s {
  const uint16_t* bits;
  PL_FN float operator[](int i) const { return float_of_half(bits[i]); }
};

// The columns of one tile.
struct TileColumns {
  const float* column[kColumns];
  const uint16_t* narrow[kColumns];  // used instead of `column` unless dtype is kFloat32
  DType dtype;
  const uint8_t* mask;
  // The mask as a bit pattern per token, for kept(): all ones if unmasked, 0 if masked. Undefined if
  // all_unmasked is set, or if the reader was asked for bytes only.
  const int16_t* lanes;
  bool all_unmasked;

  template <class Values>
  PL_FN Values get(int c) const {
    if constexpr (std::is_pointer_v<Values>)
      return column[c];
    else
      return {narrow[c]};
  }

  // Calls loop with the type that get() must return.
  template <class Loop>
  PL_FN auto with_type(const Loop& loop) const {
    if (dtype == DType::kBFloat16) return loop.template operator()<BFloat16s>();
    if (dtype == DType::kFloat16) return loop.template operator()<Float16s>();
    return loop.template operator()<const float*>();
  }
};

// Returns x, or 0 if the token is masked. Works on bits, as a comparison with a byte of the mask would make
// compilers unroll and permute. NaN and Infinity become 0 too.
PL_FN float kept(float x, int32_t lane) {
  return bits_float(float_bits(x) & lane);
}

// Converts the values [first, first + n) of a 16-bit column to float32.
inline void widen(const ColumnView& view, int64_t first, int n, float* out) {
  const uint16_t* in = static_cast<const uint16_t*>(view.data) + first;
  if (view.dtype == DType::kFloat16) {
#pragma omp simd
    for (int i = 0; i < n; ++i) out[i] = float_of_half(in[i]);
  } else {
#pragma omp simd
    for (int i = 0; i < n; ++i) out[i] = float_of_bfloat16(in[i]);
  }
}

inline bool all_unmasked(const uint8_t* mask, int n) {
  uint8_t least = 255;
#pragma omp simd reduction(min : least)
  for (int i = 0; i < n; ++i) least = mask[i] < least ? mask[i] : least;
  return least != 0;
}

// Returns the number of tokens up to the last unmasked one, rounded up to a multiple of kBlock but at most n.
inline int unmasked_length(const uint8_t* mask, int n) {
  int length = n / kBlock * kBlock;
  for (int i = length; i < n; ++i)
    if (mask[i] != 0) return n;
  for (; length > 0; length -= kBlock) {
    const uint8_t* block = mask + length - kBlock;
    uint8_t any = 0;
    for (int i = 0; i < kBlock; ++i) any |= block[i];
    if (any) return length;
  }
  return 0;
}

inline int64_t count_mask(const uint8_t* mask, int64_t n) {
  // Counts in bytes, so that a vector holds as many counters as masks. They are summed before they overflow.
  constexpr int kLanes = 64;
  constexpr int kMost = 255;
  int64_t total = 0;
  int64_t i = 0;
  while (n - i >= kLanes) {
    uint8_t counts[kLanes] = {};
    const int64_t steps = (n - i) / kLanes < kMost ? (n - i) / kLanes : kMost;
    for (int64_t step = 0; step < steps; ++step, i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane)
        counts[lane] = static_cast<uint8_t>(counts[lane] + (mask[i + lane] != 0 ? 1 : 0));
    int part = 0;
    for (int lane = 0; lane < kLanes; ++lane) part += counts[lane];
    total += part;
  }
  for (; i < n; ++i) total += mask[i] != 0 ? 1 : 0;
  return total;
}

// How the visitor of TileReader::tiles() reads the mask.
enum class MaskUse {
  kBytes,          // TileColumns::mask only
  kLanes,          // TileColumns::lanes, always
  kLanesIfMasked,  // TileColumns::lanes unless TileColumns::all_unmasked is set
};

// Reads tiles of one row after another. If all columns are per token and have the same dtype, loops read them
// in place. Otherwise columns that are not float32 per token are converted to buffers.
class TileReader {
 public:
  TileReader(const BatchView& batch, unsigned columns)
      : batch_(batch), columns_(columns), narrow_(narrow_type()) {}

  void start_row(int64_t row) {
    begin_ = batch_.layout.begin(row);
    const int64_t length = (batch_.layout.length(row) + kBlock - 1) / kBlock * kBlock;
    const int filled = static_cast<int>(length < kTile ? length : kTile);
    for (int c = 0; c < kColumns; ++c) {
      const ColumnView& view = batch_.column[c];
      if (!is_read(c) || !view.per_row) continue;
      const float value = element(view, row);
      for (int i = 0; i < filled; ++i) buffer_[c][i] = value;
    }
  }

  // Visits the tokens [first, first + n) of the row; n is at most kTile. They come in one or two pieces,
  // whose lengths are multiples of kBlock: visit(columns, length, position, real). Only the first `real`
  // tokens of a piece exist; the others are masked.
  template <class Visit>
  PL_FN void tiles(int64_t first, int n, MaskUse use, Visit visit) {
    const int whole = n / kBlock * kBlock;
    if (whole > 0) visit(piece(first, whole, use), whole, first, whole);
    if (n > whole) visit(remainder(first + whole, n - whole), kBlock, first + whole, n - whole);
  }

  const uint8_t* mask(int64_t first) const { return batch_.mask + begin_ + first; }

 private:
  bool is_read(int c) const { return (columns_ & (1u << c)) != 0; }

  // Returns the 16-bit dtype that all columns have, or else kFloat32.
  DType narrow_type() const {
    const ColumnView* first = nullptr;
    for (int c = 0; c < kColumns; ++c) {
      const ColumnView& view = batch_.column[c];
      if (!is_read(c)) continue;
      if (!first) first = &view;
      if (view.dtype != first->dtype || view.per_row) return DType::kFloat32;
    }
    return first ? first->dtype : DType::kFloat32;
  }

  static float element(const ColumnView& view, int64_t index) {
    switch (view.dtype) {
      case DType::kFloat16:
        return float_of_half(static_cast<const uint16_t*>(view.data)[index]);
      case DType::kBFloat16:
        return float_of_bfloat16(static_cast<const uint16_t*>(view.data)[index]);
      default:
        return static_cast<const float*>(view.data)[index];
    }
  }

  TileColumns piece(int64_t first, int n, MaskUse use) {
    TileColumns in{};
    in.dtype = narrow_;
    for (int c = 0; c < kColumns; ++c) {
      if (!is_read(c)) continue;
      const ColumnView& view = batch_.column[c];
      in.column[c] = buffer_[c];
      if (view.per_row) continue;
      if (narrow_ != DType::kFloat32)
        in.narrow[c] = static_cast<const uint16_t*>(view.data) + begin_ + first;
      else if (view.dtype == DType::kFloat32)
        in.column[c] = static_cast<const float*>(view.data) + begin_ + first;
      else
        widen(view, begin_ + first, n, buffer_[c]);
    }
    if (!batch_.mask) return in;
    in.mask = batch_.mask + begin_ + first;
    if (use != MaskUse::kBytes) read_lanes(n, use, &in);
    return in;
  }

  // Most tiles have no masked token. For them the lanes of an earlier such tile serve again.
  void read_lanes(int n, MaskUse use, TileColumns* in) {
    in->lanes = lanes_;
    const bool all = all_unmasked(in->mask, n);
    in->all_unmasked = all && use == MaskUse::kLanesIfMasked;
    if (in->all_unmasked || (all && n <= ones_)) return;
    expand_mask(in->mask, n);
    ones_ = all ? n : 0;
  }

  void expand_mask(const uint8_t* mask, int n) {
#pragma omp simd
    for (int i = 0; i < n; ++i) lanes_[i] = mask[i] != 0 ? -1 : 0;
  }

  TileColumns remainder(int64_t first, int n) {
    TileColumns in{};
    for (int c = 0; c < kColumns; ++c) {
      if (!is_read(c)) continue;
      const ColumnView& view = batch_.column[c];
      in.column[c] = view.per_row ? buffer_[c] : remainder_[c];
      if (view.per_row) continue;
      if (view.dtype == DType::kFloat32)
        memcpy(remainder_[c], static_cast<const float*>(view.data) + begin_ + first, n * sizeof(float));
      else
        widen(view, begin_ + first, n, remainder_[c]);
    }
    memset(remainder_mask_, 0, kBlock);
    if (batch_.mask) memcpy(remainder_mask_, batch_.mask + begin_ + first, n);
    in.mask = remainder_mask_;
    in.lanes = lanes_;
    expand_mask(remainder_mask_, kBlock);
    ones_ = 0;
    return in;
  }

  const BatchView& batch_;
  unsigned columns_;
  DType narrow_;
  int64_t begin_ = 0;
  int ones_ = 0;  // the number of leading lanes that are known to be all ones
  // The padding keeps the same token of two arrays from having addresses that differ by a multiple of 4096.
  // The processor would take a store to one for a store to the other.
  alignas(64) float buffer_[kColumns][kTile + 48];
  alignas(64) int16_t lanes_[kTile + 64];
  alignas(64) float remainder_[kColumns][kBlock] = {};
  alignas(64) uint8_t remainder_mask_[kBlock];
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

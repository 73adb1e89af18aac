// Reads the columns and the mask of a batch tile by tile.
#pragma once

#include "cpu/mask.h"
#include "cpu/tile.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Converts the values [first, first + n) of a 16-bit column to float32. Prefetches as many values after them,
// so that memory is read while the loops compute.
__attribute__((noinline)) inline void widen(const ColumnView& view, int64_t first, int n, float* out) {
  const uint16_t* in = static_cast<const uint16_t*>(view.data) + first;
  constexpr int kLine = 64 / sizeof(uint16_t);  // the values of a cache line
  for (int i = n; i < 2 * n; i += kLine) __builtin_prefetch(in + i);
  if (view.dtype == DType::kFloat16) {
#pragma omp simd
    for (int i = 0; i < n; ++i) out[i] = float_of_half(in[i]);
  } else {
#pragma omp simd
    for (int i = 0; i < n; ++i) out[i] = float_of_bfloat16(in[i]);
  }
}

// Tells which form of the mask the function `visit` of TileReader::tiles() reads.
enum class MaskUse {
  kBytes,          // reads TileColumns::mask only
  kLanes,          // always reads TileColumns::lanes
  kLanesIfMasked,  // reads TileColumns::lanes unless TileColumns::all_unmasked is set
};

// Returns the number at an index of a column.
inline float element(const ColumnView& view, int64_t index) {
  switch (view.dtype) {
    case DType::kFloat16:
      return float_of_half(static_cast<const uint16_t*>(view.data)[index]);
    case DType::kBFloat16:
      return float_of_bfloat16(static_cast<const uint16_t*>(view.data)[index]);
    default:
      return static_cast<const float*>(view.data)[index];
  }
}

// Reads the rows of a batch tile by tile. If all columns have one number per token and the same dtype, the
// loops read them in place. Otherwise, columns that have one number per row or are not float32 are first
// converted into buffers.
class TileReader {
 public:
  // If widens is set, or the column kTokenWeights is read, 16-bit columns are always converted to float32.
  TileReader(const BatchView& batch, unsigned columns, bool widens = false)
      : batch_(batch),
        columns_(columns),
        narrow_(widens || !kHasSpecialLoops || (columns & reads(kTokenWeights)) != 0 ? DType::kFloat32
                                                                                     : narrow_type()) {}

  // `solid` says how many tokens at the row's start are known to be unmasked. Their mask is not read.
  void start_row(int64_t row, int64_t solid = 0) {
    begin_ = batch_.layout.begin(row);
    solid_ = solid;
    const int64_t length = (batch_.layout.length(row) + kGranule - 1) / kGranule * kGranule;
    const int filled = static_cast<int>(length < kTile ? length : kTile);
    for_columns([&](int c) {
      const ColumnView& view = batch_.column[c];
      if (!view.per_row) return;
      const float value = element(view, row);
      for (int i = 0; i < filled; ++i) buffer_[c][i] = value;
    });
  }

  // Divides the tokens [first, first + n) of the row into one or two tiles, and calls visit(columns, length,
  // position, real) for each tile. n is at most kTile. A tile begins at token `position`, and its length is
  // a multiple of kGranule. Only its first `real` tokens exist. The others count as masked.
  template <class Visit>
  PL_FN void tiles(int64_t first, int n, MaskUse use, Visit visit) {
    const int whole = n / kGranule * kGranule;
    if (whole > 0) visit(whole_tile(first, whole, use), whole, first, whole);
    if (n > whole) visit(remainder(first + whole, n - whole), kGranule, first + whole, n - whole);
  }

  const uint8_t* mask(int64_t first) const { return batch_.mask + begin_ + first; }
  int64_t solid() const { return solid_; }
  int unmasked_length(int64_t first, int n) const {
    return first + n <= solid_ ? n : POLICY_LOSS_TARGET::unmasked_length(mask(first), n);
  }
  // Prefetches the mask of n tokens if it will be read, because unmasked_length() does not read it in order.
  void fetch_mask(int64_t first, int n) const {
    if (solid_ > 0) return;
    for (int i = 0; i < n; i += 64) __builtin_prefetch(mask(first) + i);
  }
  // Prefetches into the second-level cache the tokens of a row from `first` on, n at most, of some columns.
  void fetch_columns(unsigned columns, int64_t row, int64_t first, int n) const {
    const int64_t left = batch_.layout.length(row) - first;
    for (; columns != 0; columns &= columns - 1) {
      const ColumnView& view = batch_.column[__builtin_ctz(columns)];
      if (view.per_row) continue;
      const int64_t size = size_of(view.dtype);
      const char* const data =
          static_cast<const char*>(view.data) + (batch_.layout.begin(row) + first) * size;
      for (int64_t at = 0; at < (left < n ? left : n) * size; at += 64) __builtin_prefetch(data + at, 0, 2);
    }
  }

 private:
  // Calls visit(c) for each column that is read. A short row takes little longer than this loop, so the loop
  // does not visit the other columns at all.
  template <class Visit>
  PL_FN void for_columns(Visit visit) const {
    for (unsigned left = columns_; left != 0; left &= left - 1) visit(__builtin_ctz(left));
  }

  // Returns the dtype of the columns if they all have the same 16-bit dtype and one number per token.
  // Otherwise returns kFloat32.
  DType narrow_type() const {
    const ColumnView* first = nullptr;
    bool same = true;
    for_columns([&](int c) {
      const ColumnView& view = batch_.column[c];
      if (!first) first = &view;
      same = same && view.dtype == first->dtype && !view.per_row;
    });
    return first && same ? first->dtype : DType::kFloat32;
  }

  TileColumns whole_tile(int64_t first, int n, MaskUse use) {
    TileColumns in{};
    in.dtype = narrow_;
    for_columns([&](int c) {
      const ColumnView& view = batch_.column[c];
      in.column[c] = buffer_[c];
      if (view.per_row) return;
      if (narrow_ != DType::kFloat32)
        in.column[c] = static_cast<const uint16_t*>(view.data) + begin_ + first;
      else if (view.dtype == DType::kFloat32)
        in.column[c] = static_cast<const float*>(view.data) + begin_ + first;
      else
        widen(view, begin_ + first, n, buffer_[c]);
    });
    in.weights = weights_of(in);
    if (!batch_.mask) return in;
    in.mask = batch_.mask + begin_ + first;
    if (use != MaskUse::kBytes) read_lanes(first, n, use, &in);
    return in;
  }

  const float* weights_of(const TileColumns& in) const {
    return (columns_ & reads(kTokenWeights)) != 0 ? in.get<const float*>(kTokenWeights) : kOnes.of;
  }

  // Sets the lanes of a tile. Most tiles have no masked token, so the lanes of an earlier tile without masked
  // tokens are reused.
  void read_lanes(int64_t first, int n, MaskUse use, TileColumns* in) {
    in->lanes = lanes_;
    const bool all = first + n <= solid_ || all_unmasked(in->mask, n);
    in->all_unmasked = kHasSpecialLoops && all && use == MaskUse::kLanesIfMasked;
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
    for_columns([&](int c) {
      const ColumnView& view = batch_.column[c];
      in.column[c] = view.per_row ? buffer_[c] : remainder_[c];
      if (view.per_row) return;
      if (view.dtype == DType::kFloat32)
        memcpy(remainder_[c], static_cast<const float*>(view.data) + begin_ + first, n * sizeof(float));
      else
        widen(view, begin_ + first, n, remainder_[c]);
    });
    in.weights = weights_of(in);
    memset(remainder_mask_, 0, kGranule);
    if (batch_.mask) memcpy(remainder_mask_, batch_.mask + begin_ + first, n);
    in.mask = remainder_mask_;
    in.lanes = lanes_;
    expand_mask(remainder_mask_, kGranule);
    ones_ = 0;
    return in;
  }

  const BatchView& batch_;
  unsigned columns_;
  DType narrow_;
  int64_t begin_ = 0;
  int64_t solid_ = 0;
  int ones_ = 0;  // the number of leading lanes that are known to be all ones
  // The padding in these arrays is for speed. Without it, the addresses of a token in two arrays could differ
  // by a multiple of 4096. Since the processor first compares only the low 12 bits, a load from one array
  // would then wait for a store to the other.
  alignas(64) float buffer_[kColumns][kTile + 48];
  alignas(64) Lane lanes_[kTile + 64];
  alignas(64) float remainder_[kColumns][kGranule] = {};
  alignas(64) uint8_t remainder_mask_[kGranule];
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// One tile of logits: read, converted, capped, prefetched, and its largest logit.
#pragma once

#include "cpu/target.h"
#include "cpu/tile.h"

// Keeps code that several functions share from being repeated in each of them.
#define PL_SHARED __attribute__((noinline))

namespace policy_loss::inline POLICY_LOSS_TARGET {

using cpu::kLogitsTile;
using cpu::LogitsRow;
using cpu::LogitsTerms;
using cpu::TermsOfTile;

constexpr int kWide = 2 * kVector;

// Precedes a loop over `count` numbers, a multiple of kVector, and has one vector iteration compute all of
// them. For Clang, PL_FOR_LANES would say so only of kSumLanes numbers. PL_FOR_EACH_SHORT is for 16-bit
// numbers, of which kWide fill a vector.
#if defined(__clang__)
#define PL_FOR_EACH(count) PL_LOOP(kVector, (count) / kVector)
#define PL_FOR_EACH_SHORT(count) PL_LOOP(kWide, (count) / kWide)
#else
#define PL_FOR_EACH(count) PL_FOR_LANES
#define PL_FOR_EACH_SHORT(count) PL_FOR_LANES
#endif

static_assert(cpu::kLogitsGranule % kGranule == 0 && kLogitsTile % cpu::kLogitsGranule == 0);

// Logits of one tile, followed by −Infinity up to a whole granule. The buffer itself is padded like
// TileReader's buffers, because loops read one and write another.
struct alignas(64) Buffer {
  float of[kLogitsTile + 48];
};

// The memory that will be needed after a tile: the next tile and, if terms are saved, half a tile that will
// be needed about a row later. The loops over a tile prefetch it, so that memory is read while the processor
// computes.
class Ahead {
 public:
  // `position` is the index of the tile's first logit among those of the sums, which are followed by those of
  // the gradient.
  Ahead(const LogitsRow& row, int64_t first, const LogitsTerms& saved, int64_t position)
      : size_(size_of(row.dtype)),
        next_tile_(static_cast<const char*>(row.data) + (first + kLogitsTile) * size_),
        far_(next_tile_) {
    const int64_t far = lead(row.vocabulary * size_) / size_ + position / 2;
    if (far < row.vocabulary)
      far_ = static_cast<const char*>(row.data) + far * size_;
    else if (saved.next_row)
      far_ = static_cast<const char*>(saved.next_row) + (far - row.vocabulary) * size_;
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
  return (n + kGranule - 1) / kGranule * kGranule;
}

// Converts n numbers, a multiple of kGranule, to float32.
inline PL_SHARED void widen_granules(const uint16_t* in, int n, DType dtype, float* out) {
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

inline PL_SHARED void pad(int n, float* out) {
  for (int i = n; i < padded(n); ++i) out[i] = -kInfinity;
}

// Returns the logits [first, first + n) in the row's data, or null if they must be converted, copied or
// padded.
inline const float* in_place(const LogitsRow& row, int64_t first, int64_t n) {
  if (row.dtype != DType::kFloat32 || row.token_ids || n % kGranule != 0) return nullptr;
  return static_cast<const float*>(row.data) + first;
}

// Returns the logits [first, first + n). Reads them in place if possible, otherwise converts or copies them
// to the buffer.
inline PL_SHARED const float* read(const LogitsRow& row, int64_t first, int n, Buffer* buffer) {
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
      in_place = n / kGranule * kGranule;
    if (in_place > 0) widen_granules(in, in_place, row.dtype, out);
    if (in_place < n) {
      if (!row.token_ids) memcpy(bits, in + in_place, (n - in_place) * sizeof *bits);
      memset(bits + n - in_place, 0, (padded(n) - n) * sizeof *bits);
      widen_granules(bits, padded(n) - in_place, row.dtype, out + in_place);
    }
  }
  pad(n, out);
  return out;
}

inline PL_SHARED const float* cap(const float* x, int n, float softcap, Buffer* buffer) {
  const float inverse = 1.0f / softcap;
  for (int at = 0; at < padded(n); at += kVector) {
    PL_FOR_LANES_COMPACTLY
    for (int l = 0; l < kVector; ++l) buffer->of[at + l] = softcapped(x[at + l], softcap, inverse);
  }
  pad(n, buffer->of);
  return buffer->of;
}

// Returns the largest of the numbers in lanes, whose count is a power of two. Changes the lanes.
inline PL_SHARED float largest_of_lanes(float* most, int count) {
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

inline float largest(const float* z, int n) {
  // The loop has twice the usual number of lanes, because each iteration only waits for the one before.
  constexpr int kLanes = 2 * kSumLanes;
  static_assert(kGranule % kLanes == 0);
  alignas(64) float most[kLanes];
  for (float& each : most) each = -kInfinity;
  for (int at = 0; at < n; at += kLanes) {
    PL_FOR_EACH(kLanes)
    for (int l = 0; l < kLanes; ++l) most[l] = z[at + l] > most[l] ? z[at + l] : most[l];
  }
  return largest_of_lanes(most, kLanes);
}

// Returns the total of the partial sums, and sets them to 0.
inline PL_SHARED double take(LaneSum<float>* sums) {
  return sums->take();
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// What a block of threads loads of a row of logits: the tiles of a chunk, of which each thread has some
// words. The kernels in logits.cuh compute from them.
#pragma once

#include "cuda/warp.cuh"
#include "logits/call.h"
#include "logits/online.h"

namespace policy_loss::cuda {

// The logits that a thread computes together, and those that a block computes together.
constexpr int kLogitsPerThread = 16;
constexpr int kLogitsTile = kThreads * kLogitsPerThread;
// The length of a chunk. Rows of usual length have enough chunks for few rows to occupy a GPU.
constexpr int64_t kLogitsChunk = 8 * kLogitsTile;
// The blocks of a kernel that a multiprocessor runs at once. With more of them, registers would be spilled.
constexpr int kLogitsBlocks = 7;
// A word is the 16 bytes of neighbouring logits that a thread loads at once. A thread's float32 logits have
// kMostWords, and 16-bit ones half as many.
constexpr int kWordBytes = sizeof(uint4);
constexpr int kMostWords = kLogitsPerThread / 4;
using Words = uint4[kMostWords];

// What the gradient of a row's logits is computed from.
struct RowGradient {
  SoftmaxGradient of_others;
  float of_target;  // the gradient itself
};

// The arguments of the kernels, for a slice of the rows of a call. Arrays are in the memory of the device.
struct LogitsPass {
  LogitsCall call;   // call.token_ids begins with the first id of row 0
  int64_t first_id;  // call.offsets[0]
  // Per row. A slice has fewer than 2^31 chunks.
  unsigned chunks;
  bool needs_sums;
  // Per row, chunk and warp of a block: the sums, not yet divided by the temperature.
  SoftmaxSums* partials;
  RowGradient* gradients;  // per row
  float* grad_of_ids;      // per token id of the support

  // Returns the number of chunks of all rows.
  __host__ __device__ __forceinline__ unsigned count() const {
    return static_cast<unsigned>(call.rows) * chunks;
  }
  __host__ __device__ __forceinline__ unsigned partials_per_row() const { return chunks * kWarps; }
  // Returns how many lanes of a warp compute the results of a row together: a power of two.
  __host__ __device__ __forceinline__ unsigned lanes() const {
    unsigned lanes = 1;
    while (needs_sums && lanes < partials_per_row() && lanes < kWarp) lanes *= 2;
    return lanes;
  }
};

// The logits of a row that take part in its softmax.
struct DeviceRow {
  const char* data;
  DType dtype;
  int64_t vocabulary;
  const int32_t* token_ids;  // null if all take part
  int64_t length;            // the number of logits that take part

  __device__ __forceinline__ DeviceRow(const LogitsPass& pass, int64_t row)
      : data(static_cast<const char*>(pass.call.data) +
             row * pass.call.row_stride * size_of(pass.call.dtype)),
        dtype(pass.call.dtype),
        vocabulary(pass.call.vocabulary),
        token_ids(nullptr),
        length(pass.call.vocabulary) {
    if (!pass.call.token_ids) return;
    token_ids = pass.call.token_ids + (pass.call.offsets[row] - pass.first_id);
    length = pass.call.offsets[row + 1] - pass.call.offsets[row];
  }

  // Returns the index in the vocabulary of logit i. lib/ has checked the ids, but the caller may change them
  // during the call. An id that is out of range becomes 0.
  __device__ __forceinline__ int64_t index(int64_t i) const {
    if (!token_ids) return i;
    const uint32_t id = static_cast<uint32_t>(token_ids[i]);
    return id < vocabulary ? id : 0;
  }

  __device__ __forceinline__ float at(int64_t index) const { return load_one({data, dtype}, index); }
};

__device__ __forceinline__ bool is_ignored(const LogitsPass& pass, int64_t row) {
  return pass.call.targets[row] == kIgnoredTarget;
}

// Returns the index of the row's target. lib/ has checked the targets.
__device__ __forceinline__ int64_t target_of(const LogitsPass& pass, int64_t row) {
  const uint32_t target = static_cast<uint32_t>(pass.call.targets[row]);
  return target < pass.call.vocabulary ? target : 0;
}

__device__ __forceinline__ double temperature_of(const LogitsPass& pass, int64_t row) {
  return pass.call.temperatures ? pass.call.temperatures[row] : pass.call.temperature;
}

// Replaces each number by f(number, its index). The loop is not unrolled, because f is long or rarely needed.
// So that the array stays in registers, its numbers move by one place in each round.
template <class F>
__device__ __forceinline__ void replace_each(float (&x)[kLogitsPerThread], F f) {
  PL_NO_UNROLL
  for (int round = 0; round < kLogitsPerThread; ++round) {
    const float last = f(x[0], round);
#pragma unroll
    for (int j = 0; j + 1 < kLogitsPerThread; ++j) x[j] = x[j + 1];
    x[kLogitsPerThread - 1] = last;
  }
}

// Returns x. nvcc does not know that, so it does not compute what depends on x before a loop, or for its
// later rounds in advance, for which it would need many registers.
__device__ __forceinline__ int computed_anew(int x) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

// This thread's logits of one tile: those of each kThreads-th word. Places count from the tile's first logit.
struct OwnLogits {
  int64_t first;     // the index of the tile's first logit, which may lie before the row
  int word;          // the number of logits of a word, which is 4 or 8
  int low, high;     // the places of the logits that the row has: [low, high)
  unsigned whole;    // bit w: word w is loaded and stored at once
  unsigned singles;  // bit w: only single logits of word w are loaded and stored

  // All logits of a tile that are whole words.
  __device__ __forceinline__ OwnLogits(DType dtype, int64_t first)
      : first(first),
        word(dtype == DType::kFloat32 ? 4 : 8),
        low(0),
        high(kLogitsTile),
        whole((1u << kLogitsPerThread / word) - 1),
        singles(0) {}
  // `margin` is the number of logits before and after a word that are loaded with it.
  __device__ __forceinline__ OwnLogits(const DeviceRow& row, int64_t first, int64_t begin, int64_t end,
                                       int margin)
      : first(first), word(computed_anew(row.dtype == DType::kFloat32 ? 4 : 8)), whole(0), singles(0) {
    const auto place = [first](int64_t index) {
      return static_cast<int>(min(max(index - first, int64_t{0}), int64_t{kLogitsTile}));
    };
    low = place(begin);
    high = place(end);
    const int whole_low = place(begin + margin);
    const int whole_high = row.token_ids ? 0 : place(end - margin);
#pragma unroll
    for (int w = 0; w < kMostWords; ++w) {
      const int place = place_of_word(w);
      const bool is_whole = (place >= whole_low) & (place + word <= whole_high);
      const bool is_present = (place + word > low) & (place < high);
      whole |= static_cast<unsigned>(is_whole) << w;
      singles |= static_cast<unsigned>(is_present & !is_whole) << w;
    }
  }

  __device__ __forceinline__ bool is_empty() const {
    return (whole | singles) == 0;
  }
  __device__ __forceinline__ int place_of_word(int w) const {
    return (w * kThreads + static_cast<int>(threadIdx.x)) * word;
  }
  // Returns the place of the thread's logit number j.
  __device__ __forceinline__ int place_of(int j) const {
    return place_of_word(word_of(j)) + (j & (word - 1));
  }
  __device__ __forceinline__ int word_of(int j) const {
    return word == 4 ? j / 4 : j / 8;
  }
  // Returns whether logit number j is in one of these words, and the row has it.
  __device__ __forceinline__ bool has(unsigned words, int j) const {
    const int place = place_of(j);
    return (words >> word_of(j) & 1) != 0 && place >= low && place < high;
  }
};

// Returns the 16 bytes from byte `shift` of the first one of two neighbouring words on.
__device__ __forceinline__ uint4 join_words(const uint4& first, const uint4& second, unsigned shift) {
  const auto pair = [](uint32_t low, uint32_t high) { return static_cast<uint64_t>(high) << 32 | low; };
  const bool above = (shift & 8) != 0;
  const uint64_t low = above ? pair(first.z, first.w) : pair(first.x, first.y);
  const uint64_t middle = above ? pair(second.x, second.y) : pair(first.z, first.w);
  const uint64_t high = above ? pair(second.z, second.w) : pair(second.x, second.y);
  const unsigned bits = 8 * (shift & 7);
  // A shift by 64 bits would be undefined.
  const uint64_t a = low >> bits | middle << 1 << (63 - bits);
  const uint64_t b = middle >> bits | high << 1 << (63 - bits);
  return {static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(b),
          static_cast<uint32_t>(b >> 32)};
}

// Returns the number of bytes between a word's begin and an address.
__device__ __forceinline__ unsigned bytes_after_word(const void* address) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(address) % kWordBytes);
}

// Converts a thread's logits to float32.
__device__ __forceinline__ void widen(DType dtype, const Words& words, float (&x)[kLogitsPerThread]) {
  uint32_t bits[kLogitsPerThread];
#pragma unroll
  for (int w = 0; w < kMostWords; ++w) {
    bits[4 * w] = words[w].x;
    bits[4 * w + 1] = words[w].y;
    bits[4 * w + 2] = words[w].z;
    bits[4 * w + 3] = words[w].w;
  }
  const auto half = [&](int j) { return static_cast<uint16_t>(bits[j / 2] >> (16 * (j & 1))); };
  if (dtype == DType::kFloat32) {
#pragma unroll
    for (int j = 0; j < kLogitsPerThread; ++j) x[j] = bits_float(static_cast<int32_t>(bits[j]));
  } else if (dtype == DType::kBFloat16) {
#pragma unroll
    for (int j = 0; j < kLogitsPerThread; ++j) x[j] = float_of_bfloat16(half(j));
  } else {
#pragma unroll
    for (int j = 0; j < kLogitsPerThread; ++j) x[j] = float_of_half(half(j));
  }
}

// Calls f(dtype, own, the logits) for each of some tiles, whose words are whole and aligned. Loads the next
// tile's words while f computes.
template <DType dtype, class F>
__device__ __forceinline__ void for_whole_tiles_of(const DeviceRow& row, int64_t first, int tiles, F f) {
  const uint4* from = reinterpret_cast<const uint4*>(row.data + first * size_of(dtype)) + threadIdx.x;
  Words words;
  const auto load = [&] {
#pragma unroll
    for (int w = 0; w < kLogitsPerThread * size_of(dtype) / kWordBytes; ++w)
      words[w] = __ldcs(from + w * kThreads);
  };
  load();
  PL_NO_UNROLL
  for (int tile = 0; tile < tiles; ++tile) {
    float x[kLogitsPerThread];
    widen(dtype, words, x);
    from += kLogitsTile * size_of(dtype) / kWordBytes;
    if (tile + 1 < tiles) load();
    f(dtype, OwnLogits(dtype, first), x);
    first += kLogitsTile;
  }
}
template <class F>
__device__ __forceinline__ void for_whole_tiles(const DeviceRow& row, int64_t first, int tiles, F f) {
  if (tiles == 0) return;
  if (row.dtype == DType::kFloat32)
    for_whole_tiles_of<DType::kFloat32>(row, first, tiles, f);
  else if (row.dtype == DType::kFloat16)
    for_whole_tiles_of<DType::kFloat16>(row, first, tiles, f);
  else
    for_whole_tiles_of<DType::kBFloat16>(row, first, tiles, f);
}

// Loads a thread's logits of a tile. Those that the row does not have become −Infinity. If the first logit of
// each tile is aligned, so are the words.
template <bool aligned>
__device__ __forceinline__ void load_own(const DeviceRow& row, const OwnLogits& own,
                                         float (&x)[kLogitsPerThread]) {
  const bool is_float = row.dtype == DType::kFloat32;
  const bool is_half = row.dtype == DType::kFloat16;
  const uint32_t infinity = is_float ? 0xff800000u : is_half ? 0xfc00fc00u : 0xff80ff80u;
  const char* const begin = row.data + own.first * size_of(row.dtype);
  const unsigned shift = aligned ? 0 : bytes_after_word(begin);
  const uint4* const from = reinterpret_cast<const uint4*>(begin - shift) + threadIdx.x;
  Words words;
#pragma unroll
  for (int w = 0; w < kMostWords; ++w) {
    words[w] = uint4{infinity, infinity, infinity, infinity};
    if (own.whole >> w & 1) words[w] = __ldcs(from + w * kThreads);
  }
  if (shift != 0) {
#pragma unroll
    for (int w = 0; w < kMostWords; ++w)
      if (own.whole >> w & 1) words[w] = join_words(words[w], __ldcs(from + w * kThreads + 1), shift);
  }
  widen(row.dtype, words, x);
  if (own.singles != 0)
    replace_each(x, [&](float each, int j) {
      return own.has(own.singles, j) ? row.at(row.index(own.first + own.place_of(j))) : each;
    });
}

// Caps a thread's logits of a tile. Those that the row does not have stay −Infinity.
__device__ __forceinline__ void cap_logits(const OwnLogits& own, float softcap,
                                           float (&x)[kLogitsPerThread]) {
  if (softcap == 0.0f) return;
  const float inverse = 1.0f / softcap;
  replace_each(x, [&](float each, int j) {
    return own.has(own.whole | own.singles, j) ? softcapped(each, softcap, inverse) : each;
  });
}

// Returns the largest of the lanes' numbers to all lanes of a warp. None of them may be NaN.
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    x = fmaxf(x, __shfl_down_sync(kAllLanes, x, distance));
  return same_in_warp(x);
}

}  // namespace policy_loss::cuda

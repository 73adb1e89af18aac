// Reads the columns and the mask of a batch in tiles, for the CPU engine's inner loops.
//
// A tile is up to kTile tokens of one row. Its columns stay in the L1 cache while the loops of the policy
// loss, the KL estimator and the entropy loss read them one after another.
//
// Code that is compiled once per instruction set must not call functions of the C++ library that the compiler
// might not inline. The linker keeps only one copy of such a function for all instruction sets, and this
// machine may be unable to run that copy.
#pragma once

#include <cstring>
#include <type_traits>

#include "engine/batch.h"
#include "engine/sums.h"
#include "math/half.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

constexpr int kTile = 1024;
// The length of a tile, or of a part of a tile, that several loops read. The processor keeps prefetching the
// columns of all these loops only if it switches between the loops often.
constexpr int kSharedTile = 512;
// The loops get only lengths that are multiples of kBlock, so that vectorised loops need no code for a
// remainder. The last tokens of a row are copied to buffers of this length. The rest of such a buffer counts
// as masked.
constexpr int kBlock = 64;

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

// Prefetches what a loop reads or writes `distance` tokens after `tokens`, as many tokens as it computes at a
// time, into the L1 or the L2 cache. Memory is thus read while the processor computes. Processors prefetch by
// themselves, too, but they stop at the end of each page.
template <int level, int writes, class Number>
PL_FN void fetch(const Number* tokens, int distance) {
  constexpr int kLine = 64 / sizeof(Number);  // the numbers in a cache line
  for (int i = 0; i < kSumLanes; i += kLine) __builtin_prefetch(tokens + distance + i, writes, 4 - level);
}

// Prefetches for a loop that takes longer to compute than memory takes.
template <int writes = 0, class Number>
PL_FN void fetch_in_time(const Number* tokens) {
  fetch<1, writes>(tokens, 512);
}

// How many tokens ahead fetch_ahead() prefetches into the L2 and into the L1 cache.
constexpr int kFar = 1024;
constexpr int kNear = 64;

// Prefetches for a loop that waits for memory: into the L2 cache first, which can wait for more cache lines
// at a time than the L1 cache. This takes twice as many instructions. With shorter vectors than those of
// AVX-512, loops compute longer, and wait for memory only if the columns have 32 bits.
template <int writes = 0, class Number>
PL_FN void fetch_ahead(const Number* tokens) {
#if defined(__AVX512F__)
  constexpr bool waits = true;
#elif defined(__AVX__)
  constexpr bool waits = sizeof(Number) == sizeof(float);
#else
  constexpr bool waits = false;
#endif
  if constexpr (waits) {
    fetch<2, writes>(tokens, kFar);
    fetch<1, writes>(tokens, kNear);
  } else {
    fetch_in_time<writes>(tokens);
  }
}
PL_FN void fetch_ahead(BFloat16s tokens) {
  fetch_ahead(tokens.bits);
}
PL_FN void fetch_ahead(Float16s tokens) {
  fetch_ahead(tokens.bits);
}

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

static_assert(kBlock % kSumLanes == 0 && kSumTokens % kTile == 0 && kTile % kSharedTile == 0);

// Precedes a loop over the kSumLanes partial sums, and has the compiler vectorise it. One vector step
// computes the whole loop, so that the partial sums stay in registers. Clang needs the numbers, because it
// would unroll a short loop before it vectorises. With the short vectors of SSE4, a step computes a quarter
// of the loop, because the code of the whole loop would be three times as large as that of AVX2.
//
// PL_FOR_LANES_COMPACTLY computes one vector per step. It is for loops over a single vector, and for loops
// whose code would be too large otherwise.
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
    Vector part[kVectors];
    for (int v = 0; v < kVectors; ++v) part[v] = vectors()[v];
    *this = {};
    for (int width = kVectors / 2; width > 0; width /= 2)
      for (int v = 0; v < width; ++v) part[v] += part[v + width];
    constexpr int wide = kSumLanes / kVectors;
    Number sum[wide];
    memcpy(sum, part, sizeof sum);
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

// The columns and the mask of one tile, and the place of its gradient.
struct TileColumns {
  const void* column[kColumns];  // of floats if dtype is kFloat32, otherwise of uint16_t
  DType dtype;
  const uint8_t* mask;
  // The mask for kept(), one Lane per token. Not valid if all_unmasked is set, or if tiles() was called with
  // MaskUse::kBytes.
  const Lane* lanes;
  bool all_unmasked;
  const float* weights;  // the column kWeights, or ones if it is not read
  // Where the gradient will be in the end, and the size of its numbers. The loops may write it to a buffer
  // first. They prefetch this memory.
  const char* output;
  int64_t output_size;

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
    rest.output += first * output_size;
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

// Prefetches what fetch_ahead() would prefetch of the memory where a tile's gradient will be. next() is
// called for every kSumLanes tokens.
class OutputAhead {
 public:
  explicit PL_FN OutputAhead(const TileColumns& in)
      : near_(in.output + kNear * in.output_size),
        far_((kFar - kNear) * in.output_size),
        step_(kSumLanes * in.output_size) {}

  PL_FN void next() {
    constexpr int kLine = 64;
    __builtin_prefetch(near_ + far_, 1, 2);
    __builtin_prefetch(near_ + far_ + kLine, 1, 2);
    __builtin_prefetch(near_, 1, 3);
    __builtin_prefetch(near_ + kLine, 1, 3);
    near_ += step_;
  }

 private:
  const char* near_;
  int64_t far_, step_;
};

// Prefetches for a loop over columns of type Values that writes a gradient to `grad`. Where columns have 16
// bits, gradients often have 16 bits, too, and `grad` is a buffer.
template <class Values>
PL_FN void fetch_gradient(const float* grad, OutputAhead* output) {
  if constexpr (std::is_pointer_v<Values>)
    fetch_ahead<1>(grad);
  else
    output->next();
}

// Returns x if the token is unmasked. Otherwise returns 0, even if x is NaN or infinite. It works on the bits
// of x, because compilers generate slow code for a comparison with the mask's bytes.
PL_FN float kept(float x, int32_t lane) {
  return bits_float(float_bits(x) & lane);
}

// Do the same for a number that is stored, and for one that is added to a sum. Clang then keeps the lanes in
// AVX-512's mask registers, and applies them in the instructions that compute and add the numbers. Adding −0
// changes no sum. Loops with many comparisons have too few mask registers for that.
PL_FN float stored(float x, int32_t lane) {
#if defined(__clang__) && defined(__AVX512F__)
  return lane != 0 ? x : 0.0f;
#else
  return kept(x, lane);
#endif
}
PL_FN float added(float x, int32_t lane) {
#if defined(__clang__) && defined(__AVX512F__)
  return lane != 0 ? x : -0.0f;
#else
  return kept(x, lane);
#endif
}

// Returns x if the token is unmasked according to the mask's byte, otherwise 0. An expression that reads x
// only for unmasked tokens would become a branch per token where vectors have no masked loads.
template <class Number>
PL_FN Number kept_by(uint8_t mask, Number x) {
  return mask != 0 ? x : Number(0);
}

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

// Whether any of some numbers has a property. With bool, Clang tests all numbers of a vector at once. GCC 12
// would not vectorise the loop.
#if defined(__clang__)
template <class Number>
using Any = bool;
#else
template <class Number>
using Any = Number;
#endif

// Return whether a block has a masked token, and whether it has an unmasked one.
PL_FN bool has_masked(const uint8_t* block) {
  Any<uint8_t> any = 0;
  for (int i = 0; i < kBlock; ++i) any |= block[i] == 0 ? 1 : 0;
  return any != 0;
}
PL_FN bool has_unmasked(const uint8_t* block) {
  Any<uint8_t> any = 0;
  for (int i = 0; i < kBlock; ++i) any |= block[i] != 0 ? 1 : 0;
  return any != 0;
}

inline bool all_unmasked(const uint8_t* mask, int n) {
  int at = 0;
  for (; at + kBlock <= n; at += kBlock)
    if (has_masked(mask + at)) return false;
  Any<uint8_t> any_masked = 0;
  for (; at < n; ++at) any_masked |= mask[at] == 0 ? 1 : 0;
  return any_masked == 0;
}

// Returns the number of tokens up to and including the last unmasked one, rounded up to a multiple of kBlock
// but at most n.
inline int unmasked_length(const uint8_t* mask, int n) {
  int length = n / kBlock * kBlock;
  for (int i = length; i < n; ++i)
    if (mask[i] != 0) return n;
  while (length > 0 && !has_unmasked(mask + length - kBlock)) length -= kBlock;
  return length;
}

// Returns the position after the last unmasked token of a row before `last`, or 0 if there is none. That can
// happen even if unmasked tokens were counted, because the caller may change the mask during the call.
inline int64_t end_of_unmasked(const uint8_t* mask, int64_t last) {
  while (last > kBlock && !has_unmasked(mask + last - kBlock)) last -= kBlock;
  while (last > 0 && mask[last - 1] == 0) --last;
  return last;
}

inline int64_t count_mask(const uint8_t* mask, int64_t n) {
  // Counts in bytes, so that a vector holds one counter for each byte of the mask. Adds the counters to the
  // total before they overflow.
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
  // If widens is set, or the column kWeights is read, 16-bit columns are always converted to float32.
  TileReader(const BatchView& batch, unsigned columns, bool widens = false)
      : batch_(batch),
        columns_(columns),
        narrow_(widens || !kHasSpecialLoops || (columns & reads(kWeights)) != 0 ? DType::kFloat32
                                                                                : narrow_type()) {}

  // `solid` says how many tokens at the row's start are known to be unmasked. Their mask is not read.
  void start_row(int64_t row, int64_t solid = 0) {
    begin_ = batch_.layout.begin(row);
    solid_ = solid;
    const int64_t length = (batch_.layout.length(row) + kBlock - 1) / kBlock * kBlock;
    const int filled = static_cast<int>(length < kTile ? length : kTile);
    for_columns([&](int c) {
      const ColumnView& view = batch_.column[c];
      if (!view.per_row) return;
      const float value = element(view, row);
      for (int i = 0; i < filled; ++i) buffer_[c][i] = value;
    });
  }

  // Divides the tokens [first, first + n) of the row into one or two pieces, and calls visit(columns, length,
  // position, real) for each piece. n is at most kTile. A piece begins at token `position`, and its length is
  // a multiple of kBlock. Only its first `real` tokens exist. The others count as masked.
  template <class Visit>
  PL_FN void tiles(int64_t first, int n, MaskUse use, Visit visit) {
    const int whole = n / kBlock * kBlock;
    if (whole > 0) visit(piece(first, whole, use), whole, first, whole);
    if (n > whole) visit(remainder(first + whole, n - whole), kBlock, first + whole, n - whole);
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

  TileColumns piece(int64_t first, int n, MaskUse use) {
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
    return (columns_ & reads(kWeights)) != 0 ? in.get<const float*>(kWeights) : kOnes.of;
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
  int64_t solid_ = 0;
  int ones_ = 0;  // the number of leading lanes that are known to be all ones
  // The padding in these arrays is for speed. Without it, the addresses of a token in two arrays could differ
  // by a multiple of 4096. Since the processor first compares only the low 12 bits, a load from one array
  // would then wait for a store to the other.
  alignas(64) float buffer_[kColumns][kTile + 48];
  alignas(64) Lane lanes_[kTile + 64];
  alignas(64) float remainder_[kColumns][kBlock] = {};
  alignas(64) uint8_t remainder_mask_[kBlock];
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

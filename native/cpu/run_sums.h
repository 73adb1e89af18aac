// Computes the sums over contiguous runs of unmasked tokens, for the scans of programs on the CPU.
//
// A first pass over the blocks of a row finds, for each token, the sum of the values of its run up to this
// token. A second pass, from the row's end, copies the sum of the last token of each run to the others. Both
// passes compute blocks with masked and unmasked tokens without a branch per token or run, since runs may be
// short.
#pragma once

#include "cpu/shuffle.h"
#include "cpu/tile.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

class RunSums {
 public:
  // Replaces the value of each unmasked token of a row with the sum over its run. If `solid` is not 0, the
  // row's first `solid` tokens are unmasked and no others, and the mask is not read. The values of masked
  // tokens must be 0. There must be room for kBlock − 1 more values.
  static void replace(const uint8_t* mask, int64_t solid, int64_t length, float* values) {
    const int64_t padded = (length + kBlock - 1) / kBlock * kBlock;
    for (int64_t i = length; i < padded; ++i) values[i] = 0;
    if (solid > 0) return fill(values, values + solid, static_cast<float>(sum_of(values, padded)));
    RunSums sums(mask, length, values);
    for (int64_t at = 0; at < padded;) at = sums.add_blocks(at);
    for (int64_t at = padded; at > 0;) at = sums.copy_blocks(at);
  }

 private:
  static constexpr int kTokens = 16;  // that are computed at a time
  template <class Number>
  struct Vectors {
    static constexpr int kWidth = kVectorBytes / sizeof(Number);
    static constexpr int kCount = kTokens / kWidth;
    typedef Number Vector __attribute__((vector_size(kVectorBytes)));
  };
  using Doubles = Vectors<double>;
  using Floats = Vectors<float>;
  using Longs = Vectors<int64_t>;
  using Ints = Vectors<int32_t>;

  // What a block's mask says of its tokens.
  enum class Block { kMasked, kSolid, kMixed };

  RunSums(const uint8_t* mask, int64_t length, float* values)
      : mask_(mask), length_(length), values_(values) {}

  // Returns the mask of the block that begins at a token.
  const uint8_t* mask_of(int64_t at) {
    if (length_ - at >= kBlock) return mask_ + at;
    memset(last_mask_, 0, kBlock);
    memcpy(last_mask_, mask_ + at, length_ - at);
    return last_mask_;
  }
  bool is_solid(int64_t at) { return !has_masked(mask_of(at)); }

  // Reads the mask of a block, and expands it to lanes if it is mixed.
  Block read(int64_t at) {
    const uint8_t* const mask = mask_of(at);
    if (!has_masked(mask)) return Block::kSolid;
    if (!has_unmasked(mask)) return Block::kMasked;
#pragma omp simd
    for (int i = 0; i < kBlock; ++i) lanes_[i] = mask[i] != 0 ? -1 : 0;
    return Block::kMixed;
  }

  // Computes the sums up to the tokens of the block that begins at a token. If the block is solid, does so
  // for the solid ones after it, too, but only for the last of all these tokens. Returns where the next block
  // begins.
  int64_t add_blocks(int64_t at) {
    int64_t end = at + kBlock;
    switch (read(at)) {
      case Block::kSolid:
        while (end < length_ && is_solid(end)) end += kBlock;
        sum_ += sum_of(values_ + at, end - at);
        values_[end - 1] = static_cast<float>(sum_);
        break;
      case Block::kMasked:
        sum_ = 0;
        break;
      case Block::kMixed:
        for (int i = 0; i < kBlock; i += kTokens) add(lanes_ + i, values_ + at + i);
    }
    return end;
  }

  // Returns the sum of n values, a multiple of kBlock.
  static double sum_of(const float* values, int64_t n) {
    double partial[kSumLanes] = {};
    for (int64_t at = 0; at < n; at += kSumLanes) {
      PL_FOR_LANES
      for (int l = 0; l < kSumLanes; ++l) partial[l] += static_cast<double>(values[at + l]);
    }
    LaneSum<double> sum;
    sum.load(partial);
    return sum.take();
  }

  // Replaces values with the sums of their runs up to them.
  void add(const int32_t* lanes, float* values) {
    Doubles::Vector x[Doubles::kCount];
    Longs::Vector same_run[Longs::kCount];
    for (int v = 0; v < Doubles::kCount; ++v) {
      x[v] = read_as<Doubles::Vector>(values + v * Doubles::kWidth);
      same_run[v] = read_as<Longs::Vector>(lanes + v * Longs::kWidth);
    }
    add_before<1>(x, same_run);
    const Doubles::Vector before = Doubles::Vector{} + sum_;
    for (int v = 0; v < Doubles::kCount; ++v) {
      x[v] += masked(before, same_run[v]);
      const auto sums = __builtin_convertvector(x[v], HalfFloats);
      memcpy(values + v * Doubles::kWidth, &sums, sizeof sums);
    }
    sum_ = x[Doubles::kCount - 1][Doubles::kWidth - 1];
  }

  // x has, for each token, the sum over up to `distance` tokens of its run. Adds the sum over as many tokens
  // before. `same_run` tells whether the last `distance` tokens, or all since the first one, are unmasked.
  template <int distance>
  static PL_FN void add_before(Doubles::Vector* x, Longs::Vector* same_run) {
    Doubles::Vector sums[Doubles::kCount];
    Longs::Vector same[Longs::kCount];
    shift_later<distance, Doubles::kCount>(x, Doubles::Vector{}, sums);
    shift_later<distance, Longs::kCount>(same_run, ~Longs::Vector{}, same);
    for (int v = 0; v < Doubles::kCount; ++v) {
      x[v] += masked(sums[v], same_run[v]);
      same_run[v] &= same[v];
    }
    if constexpr (2 * distance < kTokens) add_before<2 * distance>(x, same_run);
  }

  // Copies the sums of runs to the tokens of the block that ends at a token. If the block is solid, does so
  // for the solid ones before it, too. Returns where the previous block ends.
  int64_t copy_blocks(int64_t end) {
    int64_t at = end - kBlock;
    switch (read(at)) {
      case Block::kSolid:
        while (at > 0 && is_solid(at - kBlock)) at -= kBlock;
        if (is_next_unmasked_ == 0) sum_of_run_ = values_[end - 1];
        is_next_unmasked_ = -1;
        fill(values_ + at, values_ + end, sum_of_run_);
        break;
      case Block::kMasked:
        is_next_unmasked_ = 0;
        break;
      case Block::kMixed:
        for (int i = kBlock - kTokens; i >= 0; i -= kTokens) copy(lanes_ + i, values_ + at + i);
    }
    return at;
  }

  static void fill(float* first, float* last, float value) {
    while (first < last) *first++ = value;
  }

  // Replaces the sums of runs up to tokens with those of the whole runs.
  void copy(const int32_t* lanes, float* values) {
    Floats::Vector x[Floats::kCount];
    Ints::Vector continues[Ints::kCount], next[Ints::kCount];
    memcpy(x, values, sizeof x);
    memcpy(continues, lanes, sizeof continues);
    const Ints::Vector after = Ints::Vector{} + is_next_unmasked_;
    shift_earlier<1, Ints::kCount>(continues, after, next);
    for (int v = 0; v < Ints::kCount; ++v) continues[v] &= next[v];
    copy_after<1>(x, continues, after);
    const Floats::Vector sum = Floats::Vector{} + sum_of_run_;
    for (int v = 0; v < Floats::kCount; ++v) x[v] = chosen(continues[v], sum, x[v]);
    memcpy(values, x, sizeof x);
    sum_of_run_ = x[0][0];
    is_next_unmasked_ = lanes[0];
  }

  // Where a run continues for `distance` more tokens, takes the sum from there. `continues` tells where it
  // does.
  template <int distance>
  static PL_FN void copy_after(Floats::Vector* x, Ints::Vector* continues, const Ints::Vector& after) {
    Floats::Vector sums[Floats::kCount];
    Ints::Vector more[Ints::kCount];
    shift_earlier<distance, Floats::kCount>(x, Floats::Vector{}, sums);
    shift_earlier<distance, Ints::kCount>(continues, after, more);
    for (int v = 0; v < Floats::kCount; ++v) {
      x[v] = chosen(continues[v], sums[v], x[v]);
      continues[v] &= more[v];
    }
    if constexpr (2 * distance < kTokens) copy_after<2 * distance>(x, continues, after);
  }

  typedef float HalfFloats __attribute__((vector_size(kVectorBytes / 2)));

  // Returns numbers in memory, converted to those of a vector.
  template <class Vector, class Number>
  static PL_FN Vector read_as(const Number* from) {
    typedef Number Narrow __attribute__((vector_size(kVectorBytes / 2)));
    Narrow numbers;
    memcpy(&numbers, from, sizeof numbers);
    return __builtin_convertvector(numbers, Vector);
  }
  static PL_FN Doubles::Vector masked(const Doubles::Vector& x, const Longs::Vector& lanes) {
    return reinterpret_cast<Doubles::Vector>(reinterpret_cast<Longs::Vector>(x) & lanes);
  }
  static PL_FN Floats::Vector chosen(const Ints::Vector& lanes, const Floats::Vector& x,
                                     const Floats::Vector& other) {
    return reinterpret_cast<Floats::Vector>((reinterpret_cast<Ints::Vector>(x) & lanes) |
                                            (reinterpret_cast<Ints::Vector>(other) & ~lanes));
  }

  const uint8_t* const mask_;
  const int64_t length_;
  float* const values_;
  alignas(64) int32_t lanes_[kBlock];
  uint8_t last_mask_[kBlock];  // of the last block of the row, if that is shorter than a block
  double sum_ = 0;             // of the first pass: the sum of the run so far
  // Of the second pass: the sum of the run that the token after the block belongs to, if that is unmasked.
  float sum_of_run_ = 0;
  int32_t is_next_unmasked_ = 0;  // −1 if it is, else 0
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

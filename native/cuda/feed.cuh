// A feed copies tokens from device memory to shared memory, where the warps of a kernel read them. Names such
// as fed_blocks refer to kernels that use a feed.
//
// A warp goes through a chunk (a range of tokens, see pass.h) in tiles of kFeedTile = 256 tokens. While it
// computes one tile, the next tiles are copied asynchronously. This keeps the memory busy even if warps are
// few, dtypes are narrow or the arithmetic takes long.
//
// From compute capability 9.0 on, one lane of a warp copies a whole column of a tile at once
// (bulk_copies.cuh). On older GPUs, each lane copies 16 bytes at a time, for every dtype. In each tile, a
// lane computes four neighbouring tokens and then four others, 128 tokens later. These need not be the tokens
// that the lane has copied itself.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <type_traits>

#include "cuda/bulk_copies.cuh"

namespace policy_loss::cuda {

static_assert(kMostFeedStages * kBarrierBytes <= kFeedHeadBytes);
// The number of bytes that one lane copies at once, and the number that a whole warp copies at once.
constexpr int kCopyBytes = sizeof(uint4);
constexpr int kWarpBytes = kWarp * kCopyBytes;
// The number of bytes of a tile's mask, and of one column of a tile in the widest dtype.
constexpr int kMaskBytes = kFeedTile;
constexpr int kColumnBytes = kFeedTile * 4;
// Stands for "columns of several dtypes" where a dtype is a number.
constexpr int kNoDType = -1;

// Returns the dynamic shared memory of the block.
__device__ __forceinline__ char* launch_memory() {
#if defined(__CUDACC__)
  extern __shared__ __align__(128) uint4 memory[];
  return reinterpret_cast<char*>(memory);
#else
  return emulation::launch_memory();
#endif
}

// A place in shared memory to which a lane copies. It keeps the address in the form that the copy instruction
// needs, because converting the address for every copy would double the cost of a copy.
class Destination {
 public:
  __device__ __forceinline__ explicit Destination(void* place) {
#if defined(__CUDA_ARCH__)
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(place));
    asm volatile("mov.u32 %0, %1;" : "=r"(address_) : "r"(address));
#else
    address_ = static_cast<char*>(place);
#endif
  }

  // Starts an asynchronous copy of kCopyBytes bytes. They are stored `offset` bytes after the place.
  __device__ __forceinline__ void copy(int offset, const void* from) const {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address_ + offset), "l"(from) : "memory");
#else
    __pipeline_memcpy_async(address_ + offset, from, kCopyBytes);
#endif
  }

 private:
#if defined(__CUDA_ARCH__)
  uint32_t address_;
#else
  char* address_;
#endif
};

// The set of columns that a loss's token() reads. It is empty for a loss over pairs of rows, which reads its
// columns only in the row pass.
template <class L>
constexpr unsigned columns_of = std::is_same_v<L, NoLoss> || L::traits.by_pairs
                                    ? 0u
                                    : reads(kLogprob) | L::traits.columns;

// The columns that kernels of built-in functions may read in addition to those that they always read. They
// also cover every AdvantageColumn.
constexpr unsigned kBuiltInColumns =
    reads(kLogprob) | reads(kOldLogprob) | reads(kRefLogprob) | reads(kAdvantages) | reads(kEntropy);

// One row's values in the columns that have one value per row.
struct RowColumns {
  float value[kColumns] = {};
};

// Gives access to four neighbouring tokens, as part of one row. column<c>() loads their values in column c.
template <class Here>
struct Quads {
  const Here& here;
  const RowColumns& row;

  template <int c>
  __device__ __forceinline__ Quad column() const {
    return here.template column<c>(row);
  }
};

// Copies columns of a batch to shared memory for the warps of a block. `always` is a set of columns that
// every launch of the kernel reads. The compiler can leave out checks for these columns. `possible` is a set
// of columns that some launches read. No code is generated for columns in neither set.
template <unsigned always, unsigned possible = kBuiltInColumns>
class Feed {
  static constexpr unsigned others = possible & ~always;

 public:
  // Returns how much shared memory a block needs for these columns.
  static constexpr FeedMemory memory(unsigned columns) { return {kWarps * stage_bytes(columns)}; }

  // Creates a feed for these columns of a batch and, if the batch has one, for the mask. Columns in neither
  // `always` nor `possible` are ignored. The feed keeps a reference to `pass`, which must therefore be a
  // parameter of the kernel. All threads of the block must call this together. The dynamic shared memory of
  // the kernel belongs to the feed until the kernel ends, because barriers are in it.
  __device__ __forceinline__ Feed(const ChunkedBatch& pass, unsigned columns)
      : batch_(pass.batch),
        stages_(pass.feed_stages),
        lane_(threadIdx.x % kWarp),
        stage_bytes_(stage_bytes(columns)),
        room_(launch_memory() + warp_of_block() * (kFeedHeadBytes + stages_ * stage_bytes_) + kFeedHeadBytes),
        destination_(room_ + lane_ * kCopyBytes),
        in_bulk_(has_bulk_copies()),
        barriers_(shared_address(room_ - kFeedHeadBytes)) {
    const BatchView& batch = batch_;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (!may_read(c) || (columns >> c & 1) == 0) continue;
      if (batch.column[c].per_row) {
        per_row_ |= 1u << c;
        continue;
      }
      per_token_ |= 1u << c;
      if (batch.column[c].dtype != DType::kFloat32) narrow_ |= 1u << c;
    }
    granule_bytes_ = kGranule * (4 * __popc(per_token_) - 2 * __popc(narrow_) + (batch.mask ? 1 : 0));
    if (in_bulk_) make_barriers();
  }

  // Gives a lane access to the four tokens that it computes next. Their values have arrived in shared memory.
  class Here {
   public:
    // Returns four bits: bit j is set if token j is unmasked. Returns 0 if the batch has no mask.
    __device__ __forceinline__ unsigned unmasked() const {
      return feed_.batch_.mask
                 ? mask_bits(reinterpret_cast<const uint32_t*>(stage_)[half_ * kWarp + feed_.lane_])
                 : 0;
    }

    // Returns the four values of column c, or zeros if the kernel does not read the column. `row` is the
    // result of of_row() for the row of the tokens.
    template <int c>
    __device__ __forceinline__ Quad column(const RowColumns& row) const {
      if ((feed_.per_row_ >> c & 1) != 0) return same_quad(row.value[c]);
      if ((always >> c & 1) == 0 && (feed_.per_token_ >> c & 1) == 0) return {};
      const char* const at = stage_ + place_of<c>();
      const int index = half_ * kWarp + feed_.lane_;
      if (feed_.narrow_ == 0 || (feed_.narrow_ >> c & 1) == 0) return wide_quad(at, index);
      return narrow_quad(at, index, feed_.batch_.column[c].dtype);
    }

    // Returns column<c>(row) if column c is in `always`, otherwise zeros. The choice is made at compile time.
    template <int c>
    __device__ __forceinline__ Quad column_of_always(const RowColumns& row) const {
      if constexpr ((always >> c & 1) != 0)
        return column<c>(row);
      else
        return {};
    }

   private:
    friend class Feed;
    __device__ __forceinline__ Here(const Feed& feed, const char* stage, int half)
        : feed_(feed), stage_(stage), half_(half) {}

    const Feed& feed_;
    const char* const stage_;
    const int half_;
  };

  // Gives a lane access to its two quads of a tile, for a kernel whose columns all have the dtype
  // `shared_dtype()`.
  class WholeTile {
   public:
    // Returns four values of column c, which is in `always`. `half` is 0 or 1. Only the advantages may have
    // one value per row.
    template <int c, DType dtype>
    __device__ __forceinline__ Quad column(int half, const RowColumns& row) const {
      if constexpr ((always >> c & 1) == 0) return {};
      if (c == kAdvantages && (feed_.per_row_ >> c & 1) != 0) return same_quad(row.value[c]);
      const char* const at = stage_ + place_of<c>();
      const int index = half * kWarp + feed_.lane_;
      if constexpr (dtype == DType::kFloat32) return wide_quad(at, index);
      return narrow_quad(at, index, dtype);
    }

   private:
    friend class Feed;
    __device__ __forceinline__ WholeTile(const Feed& feed, const char* stage) : feed_(feed), stage_(stage) {}

    const Feed& feed_;
    const char* const stage_;
  };

  // Returns the dtype of the columns in `always`, or kNoDType if they differ in it, or if one other than the
  // advantages has one value per row.
  __device__ __forceinline__ int shared_dtype() const {
    int shared = kNoDType;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if ((always >> c & 1) == 0) continue;
      if ((per_row_ >> c & 1) != 0) {
        if (c != kAdvantages) return kNoDType;
        continue;
      }
      const int dtype = static_cast<int>(batch_.column[c].dtype);
      if (shared != kNoDType && shared != dtype) return kNoDType;
      shared = dtype;
    }
    return shared;
  }

  // Goes through the tokens [first, last) in tiles. `first` must be a multiple of kFeedTile. For each half of
  // a tile, which begins at token first + at, calls visit(at, here), where `here` gives access to this lane's
  // four tokens. The values of tokens from `last` on are undefined.
  //
  // Bit k of `wanted` tells whether tile k is wanted. A tile that is not wanted is neither read nor visited.
  // Where bit k of `whole` is set, calls visit_whole(at, whole_tile) first, and visits the halves of the
  // tile only if that returns false. All lanes of the warp must call this function together.
  template <class Visit, class VisitWhole>
  __device__ __forceinline__ void for_tiles(int64_t first, int64_t last, unsigned wanted, Visit visit,
                                            unsigned whole, VisitWhole visit_whole) const {
    int length = static_cast<int>(last - first);
    if (in_bulk_) {
      first = same_in_warp(first);
      length = same_in_warp(length);
      wanted = same_in_warp(wanted);
    }
#pragma unroll 1
    for (int stage = 0; stage < stages_; ++stage)
      fetch(first, stage * kFeedTile, length, stage, (wanted >> stage & 1) != 0);
    int stage = 0;
    for (int tile = 0; tile < length; tile += kFeedTile) {
      const bool is_wanted = (wanted & 1) != 0;
      wait_for_stage(stage, is_wanted);
      const char* const here = room_ + stage * stage_bytes_;
      if (is_wanted && ((whole & 1) == 0 || !visit_whole(tile, WholeTile(*this, here)))) {
#pragma unroll 1
        for (int half = 0; half < kFeedTile / kTile; ++half) {
          const int at = tile + half * kTile;
          if (at >= length) break;
          visit(at, Here(*this, here, half));
        }
      }
      __syncwarp();  // no lane may still read the stage that is filled next
      fetch(first, tile + stages_ * kFeedTile, length, stage, (wanted >> stages_ & 1) != 0);
      stage = stage + 1 == stages_ ? 0 : stage + 1;
      wanted >>= 1;
      whole >>= 1;
    }
  }

  // Loads the row's values in the columns that have one value per row.
  __device__ __forceinline__ RowColumns of_row(int64_t row) const {
    RowColumns columns;
    if (per_row_ == 0) return columns;
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (may_read(c) && (per_row_ >> c & 1) != 0) columns.value[c] = load_one(batch_.column[c], row);
    return columns;
  }

 private:
  __host__ __device__ static constexpr bool may_read(int c) {
    return ((always | others) >> c & 1) != 0;
  }
  __host__ __device__ static constexpr int count(unsigned columns) {
    int n = 0;
    for (; columns != 0; columns &= columns - 1) ++n;
    return n;
  }
  // Returns the index of column c among the columns of a stage. The columns in `always` come first, so a
  // launch that reads no other columns needs no room for them.
  __host__ __device__ static constexpr int slot_of(int c) {
    const unsigned before = (1u << c) - 1u;
    return (always >> c & 1) != 0 ? count(always & before) : count(always) + count(others & before);
  }
  template <int c>
  __host__ __device__ static constexpr int place_of() {
    constexpr int slot = slot_of(c);
    return kMaskBytes + slot * kColumnBytes;
  }
  // Return quad number `index` of a column in shared memory: four values of 32 bits, or of 16 bits.
  __device__ __forceinline__ static Quad wide_quad(const char* column, int index) {
    const uint4 bits = reinterpret_cast<const uint4*>(column)[index];
    return {bits.x, bits.y, bits.z, bits.w};
  }
  __device__ __forceinline__ static Quad narrow_quad(const char* column, int index, DType dtype) {
    const uint2 bits = reinterpret_cast<const uint2*>(column)[index];
    Quad quad = {bits.x, bits.y, 0, 0};
    widen(dtype, &quad);
    return quad;
  }
  // Returns the same value four times.
  __device__ __forceinline__ static Quad same_quad(float value) {
    Quad same;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) same.set(j, value);
    return same;
  }
  // Returns the size of a stage in bytes. A stage has room for the mask and for the columns up to the last
  // one that is read.
  __host__ __device__ static constexpr int stage_bytes(unsigned columns) {
    int slots = count(always);
    for (int c = 0; c < kColumns; ++c)
      if ((columns & others) >> c & 1) slots = slot_of(c) + 1;
    return kMaskBytes + slots * kColumnBytes;
  }

  // Starts copying the tile that begins `at` tokens after `first` into a stage. Tokens from first + length
  // on need not be copied. If is_wanted is false, nothing is copied.
  __device__ __forceinline__ void fetch(int64_t first, int at, int length, int stage, bool is_wanted) const {
    const int tokens = is_wanted ? min(length - at, kFeedTile) : 0;
    const int64_t token = first + at;
    if (!in_bulk_)
      fetch_by_lanes(token, tokens, stage * stage_bytes_);
    else if (tokens == kFeedTile && narrow_ == 0)
      fetch_in_bulk<true>(token, kFeedTile, stage);
    else if (tokens > 0)
      fetch_in_bulk<false>(token, tokens, stage);
  }

  // Waits until the copies into a stage are done, and visible to the calling lane. `is_wanted` is the same as
  // for fetch().
  __device__ __forceinline__ void wait_for_stage(int stage, bool is_wanted) const {
    if (!in_bulk_) {
      stages_ == kMostFeedStages ? __pipeline_wait_prior(kMostFeedStages - 1)
                                 : __pipeline_wait_prior(kLeastFeedStages - 1);
      __syncwarp();  // makes the other lanes' copies visible too
    } else if (is_wanted) {
      wait_for_phase(barrier_of(stage), parities_ >> stage & 1);
      parities_ ^= 1u << stage;
    }
  }

  __device__ __forceinline__ SharedAddress barrier_of(int stage) const {
    return barriers_ + stage * kBarrierBytes;
  }

  __device__ __forceinline__ void make_barriers() const {
    if (is_chosen_lane()) {
      for (int stage = 0; stage < stages_; ++stage) make_barrier(barrier_of(stage));
      fence_before_copies();
    }
    __syncwarp();
  }

  // Starts copying `tokens` tokens into a stage. One lane does it all. It copies whole granules, because the
  // arrays have room for them. With `wide`, all columns have the dtype float32.
  template <bool wide>
  __device__ __forceinline__ void fetch_in_bulk(int64_t token, int tokens, int stage) const {
    static_assert(kGranule % kCopyBytes == 0);
    if (!is_chosen_lane()) return;
    const int granules = (tokens + kGranule - 1) / kGranule;
    const SharedAddress barrier = barrier_of(stage);
    const SharedAddress to = barriers_ + kFeedHeadBytes + stage * stage_bytes_;
    fence_before_copies();  // lanes have read the stage
    announce_bytes(barrier, granules * granule_bytes_);
    const auto copy = [&](int c, int place) {
      const int shift = !wide && (narrow_ >> c & 1) != 0 ? 1 : 2;
      const char* const from = static_cast<const char*>(batch_.column[c].data) + (token << shift);
      start_bulk_copy(to + place, from, (granules * kGranule) << shift, barrier);
    };
    fetch_columns<always>(copy);
    if ((per_token_ & ~always) != 0) fetch_columns<others>(copy);
    if (batch_.mask) start_bulk_copy(to, batch_.mask + token, granules * kGranule, barrier);
  }

  // Starts copying `tokens` tokens into the stage that begins at the offset `to`. Every lane takes part, and
  // commits one group of copies per tile, even an empty one, because wait_for_stage() counts groups.
  __device__ __forceinline__ void fetch_by_lanes(int64_t token, int tokens, int to) const {
    if (tokens == kFeedTile) {
      narrow_ == 0 ? fetch_tile<true>(token, to) : fetch_tile<false>(token, to);
    } else {
      fetch_columns<always | others>([&](int c, int place) { copy_tokens(c, token, tokens, to + place); });
    }
    const int at = lane_ * kCopyBytes;
    if (batch_.mask && at < tokens) destination_.copy(to, batch_.mask + token + at);
    __pipeline_commit();
  }

  // Starts copying a whole tile into the stage that begins at the offset `to`. With `wide`, all columns have
  // the dtype float32.
  template <bool wide>
  __device__ __forceinline__ void fetch_tile(int64_t token, int to) const {
    const auto copy = [&](int c, int place) { copy_tile<wide>(c, token, to + place); };
    fetch_columns<always>(copy);
    if ((per_token_ & ~always) != 0) fetch_columns<others>(copy);
  }

  // Calls copy(c, place) for each column c in `set` that has one value per token. `place` is the offset of
  // the column in a stage.
  template <unsigned set, int c = 0, class Copy>
  __device__ __forceinline__ void fetch_columns(Copy copy) const {
    if constexpr (c < kColumns) {
      if ((set >> c & 1) != 0 && (per_token_ >> c & 1) != 0) copy(c, place_of<c>());
      fetch_columns<set, c + 1>(copy);
    }
  }

  // Starts copying a whole tile (kFeedTile tokens) of column c, from index `token` on, to the offset `to` in
  // the warp's shared memory.
  template <bool wide>
  __device__ __forceinline__ void copy_tile(int c, int64_t token, int to) const {
    static_assert(kWarpBytes == kFeedTile * 2 && kColumnBytes == kFeedTile * 4);
    const bool is_narrow = !wide && (narrow_ >> c & 1) != 0;
    const char* const from =
        static_cast<const char*>(batch_.column[c].data) + (token << (is_narrow ? 1 : 2)) + lane_ * kCopyBytes;
    destination_.copy(to, from);
    if (!is_narrow) destination_.copy(to + kWarpBytes, from + kWarpBytes);
  }

  // Starts copying `tokens` tokens of column c, from index `token` on, to the offset `to` in the warp's
  // shared memory. The column may have any dtype.
  __device__ __forceinline__ void copy_tokens(int c, int64_t token, int tokens, int to) const {
    const int shift = (narrow_ >> c & 1) != 0 ? 1 : 2;
    const char* const from = static_cast<const char*>(batch_.column[c].data) + (token << shift);
#pragma unroll
    for (int at = 0; at < kColumnBytes; at += kWarpBytes) {
      const int mine = at + lane_ * kCopyBytes;
      if (mine < tokens << shift) destination_.copy(to + at, from + mine);
    }
  }

  const BatchView& batch_;
  const int stages_;
  const int lane_;
  const int stage_bytes_;
  char* const room_;
  const Destination destination_;
  const bool in_bulk_;
  const SharedAddress barriers_;  // the first barrier of the warp
  int granule_bytes_;             // the bytes of kGranule tokens: their columns and their mask
  // Bit k is the parity of the barrier phase for which stage k waits next. A kernel's parameters and the feed
  // itself do not change, so this is the only member that a const function may change.
  mutable unsigned parities_ = 0;
  unsigned per_token_ = 0, per_row_ = 0, narrow_ = 0;  // sets of columns; narrow_: those of 16 bits
};

}  // namespace policy_loss::cuda

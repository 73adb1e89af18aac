// How tokens come from device memory to a warp: a span in steps of 128, of which several are on their way
// into shared memory while the warp works on the one before them. So memory is kept busy by what is in flight
// and not by how many warps there are, and what a column holds, how wide its numbers are and how much
// arithmetic a loss has for them makes no difference to it.
//
// Every copy is 16 bytes a lane, whatever the type: of float32 all lanes take part, of 16 bits a half of
// them, of a mask a quarter. A lane works on four tokens side by side, which another lane may have copied.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <cstddef>

#include "cuda/warp.cuh"

namespace policy_loss::cuda {

// Steps that are on their way at once.
constexpr int kStepsAhead = 3;
// What a lane copies at once.
constexpr int kCopyBytes = sizeof(uint4);

// A warp's shared memory.
struct FeedRoom {
  struct Step {
    uint4 column[kColumns][kWarp];
    uint4 mask[kSpanStep / kCopyBytes];
  } step[kStepsAhead];
};

// A place in shared memory that copies go to. Its address is found once: for every copy anew takes as long as
// all else that a copy takes.
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

  // Has kCopyBytes copied to `offset` bytes beyond the place.
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

// The columns of four tokens; one that is not read holds 0.
struct QuadColumns {
  Quad column[kColumns];

  __device__ __forceinline__ Token token(int j) const {
    return {column[kLogprob][j], column[kOldLogprob][j], column[kRefLogprob][j], column[kAdvantages][j]};
  }
};

// The columns of a row that have one value for all of it.
struct RowColumns {
  float value[kColumns] = {};
};

// always: columns that are always among those wanted, which saves asking.
template <unsigned always>
class Feed {
 public:
  // Of these columns of a batch, and of its mask if it has one. The batch is to be a kernel's parameter.
  __device__ __forceinline__ Feed(const BatchView& batch, unsigned columns, FeedRoom* rooms)
      : batch_(batch),
        room_(rooms[threadIdx.x / kWarp]),
        lane_(threadIdx.x % kWarp),
        destination_(reinterpret_cast<char*>(&room_) + lane_ * kCopyBytes) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if ((columns >> c & 1) == 0) continue;
      (batch.column[c].per_row ? per_row_ : per_token_) |= 1u << c;
      if (batch.column[c].dtype != DType::kFloat32) narrow_ |= 1u << c;
    }
  }

  // The tokens [first, last), first a multiple of 128: visit(step, quad, unmasked) gets the four of the step
  // that begins at `step` which are this lane's, and which of them are unmasked; beyond `last` whatever there
  // is. Of a step whose bit is not in `wanted` nothing is read, and skip(step) is called instead. All lanes
  // come to every step.
  template <class Visit, class Skip>
  __device__ __forceinline__ void for_steps(int64_t first, int64_t last, uint64_t wanted, Visit visit,
                                            Skip skip) const {
#pragma unroll 1
    for (int stage = 0; stage < kStepsAhead; ++stage)
      fetch(first + stage * kSpanStep, last, stage, (wanted >> stage & 1) != 0);
    int stage = 0;
    for (int64_t step = first; step < last; step += kSpanStep) {
      QuadColumns quad;
      unsigned unmasked = 0;
      const bool is_wanted = (wanted & 1) != 0;
      __pipeline_wait_prior(kStepsAhead - 1);
      __syncwarp();  // Now what the other lanes have copied is there too.
      if (is_wanted) {
        take(stage, &quad);
        unmasked = take_mask(stage);
      }
      __syncwarp();  // Now all have taken theirs.
      fetch(step + kStepsAhead * kSpanStep, last, stage, (wanted >> kStepsAhead & 1) != 0);
      stage = stage + 1 < kStepsAhead ? stage + 1 : 0;
      wanted >>= 1;
      if (is_wanted)
        visit(step, quad, unmasked);
      else
        skip(step);
    }
  }

  __device__ __forceinline__ RowColumns of_row(int64_t row) const {
    RowColumns columns;
    if (per_row_ == 0) return columns;
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if ((per_row_ >> c & 1) != 0) columns.value[c] = load_one(batch_.column[c], row);
    return columns;
  }

  // Gives these values to four tokens of the row.
  __device__ __forceinline__ void add_row(const RowColumns& row, QuadColumns* quad) const {
    if (per_row_ == 0) return;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if ((per_row_ >> c & 1) == 0) continue;
#pragma unroll
      for (int j = 0; j < kQuad; ++j) quad->column[c].set(j, row.value[c]);
    }
  }

 private:
  // Calls visit(c) for the columns that come token by token.
  template <class Visit>
  __device__ __forceinline__ void for_columns(Visit visit) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if ((always >> c & 1) != 0 && (per_token_ >> c & 1) != 0) visit(c);
    if ((per_token_ & ~always) == 0) return;
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if ((always >> c & 1) == 0 && (per_token_ >> c & 1) != 0) visit(c);
  }

  // Sends for a step's tokens before `last`. Every lane asks for something at every step, be it nothing, so
  // that all count alike.
  __device__ __forceinline__ void fetch(int64_t first, int64_t last, int stage, bool is_wanted) const {
    const int tokens = is_wanted ? static_cast<int>(min(last - first, static_cast<int64_t>(kSpanStep))) : 0;
    const int at = lane_ * kCopyBytes;
    const int to = stage * static_cast<int>(sizeof(FeedRoom::Step));
    const auto copy = [&](int c, int shift) {
      const char* const from = static_cast<const char*>(batch_.column[c].data) + (first << shift);
      if (at < tokens << shift) destination_.copy(to + c * static_cast<int>(sizeof(uint4[kWarp])), from + at);
    };
    if (narrow_ == 0)
      for_columns([&](int c) { copy(c, 2); });
    else
      for_columns([&](int c) { copy(c, (narrow_ >> c & 1) != 0 ? 1 : 2); });
    if (batch_.mask && at < tokens)
      destination_.copy(to + static_cast<int>(offsetof(FeedRoom::Step, mask)), batch_.mask + first + at);
    __pipeline_commit();
  }

  __device__ __forceinline__ void take(int stage, QuadColumns* quad) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if ((always >> c & 1) == 0) quad->column[c] = {};
    const auto take_wide = [&](int c) {
      const uint4 bits = room_.step[stage].column[c][lane_];
      quad->column[c] = {bits.x, bits.y, bits.z, bits.w};
    };
    if (narrow_ == 0) return for_columns(take_wide);
    for_columns([&](int c) {
      if ((narrow_ >> c & 1) == 0) return take_wide(c);
      const uint2 bits = reinterpret_cast<const uint2*>(room_.step[stage].column[c])[lane_];
      quad->column[c] = {bits.x, bits.y, 0, 0};
      widen(batch_.column[c].dtype, &quad->column[c]);
    });
  }

  __device__ __forceinline__ unsigned take_mask(int stage) const {
    return batch_.mask ? mask_bits(reinterpret_cast<const uint32_t*>(room_.step[stage].mask)[lane_]) : 0;
  }

  const BatchView& batch_;
  FeedRoom& room_;
  const int lane_;
  const Destination destination_;
  unsigned per_token_ = 0, per_row_ = 0, narrow_ = 0;  // columns, a bit each
};

}  // namespace policy_loss::cuda

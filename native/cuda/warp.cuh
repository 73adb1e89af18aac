// Building blocks of the kernels. They load and store four tokens at a time, find the row of a token, and sum
// over a warp, a block or a grid in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include "cuda/pass.h"
#include "math/half.h"

namespace policy_loss::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

// Return the index of this warp or thread in the grid, and the number of warps or threads in the grid. A loop
// that shares work among all of them starts at the index and advances by the number.
__device__ __forceinline__ int64_t first_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}
__device__ __forceinline__ int64_t all_warps() {
  return static_cast<int64_t>(gridDim.x) * kWarps;
}

__device__ __forceinline__ int64_t first_thread() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ __forceinline__ int64_t all_threads() {
  return static_cast<int64_t>(gridDim.x) * kThreads;
}

// Returns the value of lane 0. All lanes must have the same value. The compiler then knows that it is the
// same, and computes with it once per warp instead of once per lane.
template <class T>
__device__ __forceinline__ T same_in_warp(T x) {
  return __shfl_sync(kAllLanes, x, 0);
}
// Returns the index of this warp in the block. All lanes must call it together.
__device__ __forceinline__ int warp_of_block() {
  return same_in_warp(static_cast<int>(threadIdx.x / kWarp));
}

// Tells whether a later pass of the same call reads the loaded data again, so that it should stay in the
// cache.
enum class Reuse { kLater, kNever };

template <Reuse reuse, class T>
__device__ __forceinline__ T load(const T* from) {
  if constexpr (reuse == Reuse::kNever)
    return __ldcs(from);
  else
    return __ldcg(from);
}

// The values of four tokens in one column. load_quad() stores the bits as they are in memory, and widen()
// converts them to float32.
struct Quad {
  uint32_t bits[kQuad];

  __device__ __forceinline__ float operator[](int j) const {
    return bits_float(static_cast<int32_t>(bits[j]));
  }
  __device__ __forceinline__ void set(int j, float x) { bits[j] = static_cast<uint32_t>(float_bits(x)); }
};

// Loads the four tokens that begin with token i, which must be a multiple of four. Their address is aligned,
// because every column on a device has its own allocation. All four can be read, because the length of an
// allocation is rounded up to a multiple of kGranule tokens (pass.h).
template <Reuse reuse>
__device__ __forceinline__ Quad load_quad(const ColumnView& view, int64_t i) {
  if (view.dtype == DType::kFloat32) {
    const uint4 bits = load<reuse>(reinterpret_cast<const uint4*>(static_cast<const float*>(view.data) + i));
    return {bits.x, bits.y, bits.z, bits.w};
  }
  const uint2 bits = load<reuse>(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(view.data) + i));
  return {bits.x, bits.y, 0, 0};
}

// Converts four values of any dtype to float32, in place.
__device__ __forceinline__ void widen(DType dtype, Quad* quad) {
  if (dtype == DType::kFloat32) return;
  const uint32_t pairs[] = {quad->bits[0], quad->bits[1]};
  const auto half = [&](int j) { return static_cast<uint16_t>(pairs[j / 2] >> (16 * (j & 1))); };
  if (dtype == DType::kBFloat16) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) quad->set(j, float_of_bfloat16(half(j)));
  } else {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) quad->set(j, float_of_half(half(j)));
  }
}

__device__ __forceinline__ float load_one(const ColumnView& view, int64_t i) {
  Quad value{};
  if (view.dtype == DType::kFloat32)
    value.bits[0] = __ldcg(static_cast<const uint32_t*>(view.data) + i);
  else
    value.bits[0] = __ldcg(static_cast<const uint16_t*>(view.data) + i);
  widen(view.dtype, &value);
  return value[0];
}

// Returns four bits from four bytes of a mask: bit j is set if byte j is not 0.
__device__ __forceinline__ unsigned mask_bits(uint32_t bytes) {
  // Sets a byte's highest bit if any bit of the byte is set. The multiplication then moves the four bits next
  // to each other.
  const uint32_t any = (((bytes & 0x7f7f7f7fu) + 0x7f7f7f7fu) | bytes) & 0x80808080u;
  return (any >> 7) * 0x10204080u >> 28;
}

// Loads the mask of four tokens. Bit j of the result is set if token i + j is unmasked.
template <Reuse reuse>
__device__ __forceinline__ unsigned load_mask(const uint8_t* mask, int64_t i) {
  return mask_bits(load<reuse>(reinterpret_cast<const uint32_t*>(mask + i)));
}

// Returns n bits: bit j is set if i + j lies in [from, to).
template <int n = kQuad, class Index>
__device__ __forceinline__ unsigned bits_within(Index i, Index from, Index to) {
  const int first = static_cast<int>(min(max(from - i, Index{0}), Index{n}));
  const int last = static_cast<int>(min(max(to - i, Index{0}), Index{n}));
  return ((1u << last) - 1u) & ~((1u << first) - 1u);
}

// Stores up to four values: value[j] is stored for token i + j if bit j of `which` is set.
__device__ __forceinline__ void store_quad(float* to, int64_t i, unsigned which,
                                           const float (&value)[kQuad]) {
  float* const at = to + i;
  if (which == 0xf) {
    __stcs(reinterpret_cast<float4*>(at), make_float4(value[0], value[1], value[2], value[3]));
    return;
  }
#pragma unroll
  for (int j = 0; j < kQuad; ++j)
    if (which >> j & 1) __stcs(at + j, value[j]);
}

// Returns the row in [low, high] that contains token i: the first row that ends after it. Rows must be
// packed.
__device__ __forceinline__ int64_t bisect_rows(const Layout& layout, int64_t i, int64_t low, int64_t high) {
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (layout.offsets[middle + 1] > i)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// Returns the row of token i.
__device__ __forceinline__ int64_t row_of(const Layout& layout, int64_t i) {
  return layout.offsets ? bisect_rows(layout, i, 0, layout.rows - 1) : i / layout.row_length;
}

// Returns the row of token i. The token must not come before row `after`. Its row is usually near `after`, so
// the search first advances in strides that double, and then bisects the last stride.
__device__ __forceinline__ int64_t row_of(const Layout& layout, int64_t i, int64_t after) {
  if (!layout.offsets) return i / layout.row_length;
  int64_t low = after;
  int64_t stride = 1;
  while (low + stride < layout.rows && layout.offsets[low + stride] <= i) {
    low += stride;
    stride *= 2;
  }
  return bisect_rows(layout, i, low, min(low + stride, layout.rows) - 1);
}

// Returns where a row ends, as an offset from token `first`, but at most `most`.
__device__ __forceinline__ int row_end(const Layout& layout, int64_t row, int64_t first, int most) {
  const int64_t end = layout.begin(row) + layout.length(row) - first;
  return static_cast<int>(min(end, static_cast<int64_t>(most)));
}

// Sums x over the lanes of a warp. Lane 0 gets the sum.
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x += __shfl_down_sync(kAllLanes, x, distance);
  return x;
}

// Sums each of N values over the threads of a block. Thread k gets the sum of x[k].
template <int N>
__device__ __forceinline__ double block_sum(const double (&x)[N]) {
  static_assert(N <= kThreads);
  __shared__ double of_warp[kWarps][N];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const double sum = warp_sum(x[k]);
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp][k] = sum;
  }
  __syncthreads();
  double sum = 0;
  if (threadIdx.x < N)
    for (int warp = 0; warp < kWarps; ++warp) sum += of_warp[warp][threadIdx.x];
  return sum;
}

// Returns true only in the last block of the grid that calls this with the same ticket. That block sees
// everything that the other blocks wrote before their calls.
__device__ __forceinline__ bool is_last_block(unsigned* ticket) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return false;
  __threadfence();
  if (threadIdx.x == 0) *ticket = 0;
  return true;
}

// Sums each of N values over the threads of a grid, in one launch. Each block stores its sums in `partials`,
// and the last block to finish adds them up in a fixed order. Returns true only in that block, where thread k
// gets the sum of x[k] in *total.
template <int N>
__device__ __forceinline__ bool grid_sum(const double (&x)[N], double* partials, unsigned* ticket,
                                         double* total) {
  const double sum = block_sum(x);
  if (threadIdx.x < N) partials[static_cast<int64_t>(blockIdx.x) * N + threadIdx.x] = sum;
  if (!is_last_block(ticket)) return false;
  double mine[N] = {};
  for (unsigned block = threadIdx.x; block < gridDim.x; block += kThreads)
#pragma unroll
    for (int k = 0; k < N; ++k) mine[k] += __ldcg(partials + static_cast<int64_t>(block) * N + k);
  *total = block_sum(mine);
  return true;
}

// Copies the result to the host if this is the last kernel of the call. All threads of one block must call
// this, after the kernel has written its part of the result. The host waits for the end of the kernel before
// it reads the copy, which makes all writes visible to it.
__device__ __forceinline__ void publish_result(const Pass& pass) {
  if (!pass.host_result) return;
  __syncthreads();
  static_assert(sizeof(Result) % sizeof(uint64_t) == 0);
  const uint64_t* const from = reinterpret_cast<const uint64_t*>(pass.result);
  uint64_t* const to = reinterpret_cast<uint64_t*>(pass.host_result);
  for (unsigned i = threadIdx.x; i < sizeof(Result) / sizeof(uint64_t); i += kThreads) to[i] = from[i];
}

}  // namespace policy_loss::cuda

// The kernels that compute from logits. A block computes one chunk of a row at a time.
//
// The terms of a sum are divided among the threads by their place in the row, and not by their address. So
// the bits of a row's results do not depend on where the row lies in memory, on the other rows, or on the
// grid.
#pragma once

#include "cuda/logits_tile.cuh"

namespace policy_loss::cuda {

// Computes the sums over each chunk of each row.
__global__ void __launch_bounds__(kThreads, kLogitsBlocks) logits_sums_kernel(LogitsPass pass) {
  // The rows' last chunks come last. They may be short, so the blocks end at nearly the same time.
  const unsigned rows = static_cast<unsigned>(pass.call.rows);
  for (unsigned number = blockIdx.x; number < pass.count(); number += gridDim.x) {
    const unsigned chunk = number / rows;
    const unsigned index = number - chunk * rows;
    if (is_ignored(pass, index)) continue;
    const DeviceRow row(pass, index);
    const int64_t first = chunk * kLogitsChunk;
    const int64_t last = row.token_ids ? row.length : min(first + kLogitsChunk, row.length);
    const float softcap = static_cast<float>(pass.call.softcap);
    const float log2_factor = static_cast<float>(kLog2E) / static_cast<float>(temperature_of(pass, index));
    // A logit whose address is not aligned is loaded with the one before or after its word.
    const int margin =
        bytes_after_word(row.data) == 0 ? 0 : kWordBytes / static_cast<int>(size_of(row.dtype));
    const bool plain = margin == 0 && softcap == 0.0f && !row.token_ids;
    const int whole = plain ? static_cast<int>((last - first) / kLogitsTile) : 0;
    OnlineSums sums;
    for_whole_tiles(row, first, whole, [&](DType, const OwnLogits&, float(&z)[kLogitsPerThread]) {
      add_logits(z, log2_factor, &sums);
    });
    PL_NO_UNROLL
    for (int tile = whole; first + int64_t{tile} * kLogitsTile < last; ++tile) {
      const int64_t at = first + int64_t{computed_anew(tile)} * kLogitsTile;
      const OwnLogits own(row, at, 0, row.length, margin);
      if (own.is_empty()) continue;
      float z[kLogitsPerThread];
      load_own<false>(row, own, z);
      cap_logits(own, softcap, z);
      add_logits(z, log2_factor, &sums);
    }
    const float max = warp_max(sums.max);
    if (max > -kInfinity) relate_to(max, log2_factor, &sums);
    // Each lane with the maximum left out one of its logits, but the sum may only lack one.
    const unsigned maxima = __ballot_sync(kAllLanes, sums.max == max && max > -kInfinity);
    const double rest = warp_sum(static_cast<double>(sums.rest)) + (__popc(maxima) - 1);
    const double weighted = warp_sum(static_cast<double>(sums.weighted));
    if (threadIdx.x % kWarp == 0)
      pass.partials[int64_t{index} * pass.partials_per_row() + chunk * kWarps + threadIdx.x / kWarp] = {
          max, rest, weighted};
  }
}

// Returns the sums over a row to the first of pass.lanes() neighbouring lanes, of which each adds up some
// partials. `lane` is this lane's number among them. All lanes of a warp must call it together. A lane whose
// row is ignored reads nothing.
__device__ __forceinline__ SoftmaxSums sums_of_row(const LogitsPass& pass, int64_t row, bool ignored,
                                                   unsigned lane, double inverse_temperature) {
  const unsigned lanes = pass.lanes();
  const unsigned per_lane = (pass.partials_per_row() + lanes - 1) / lanes;
  const unsigned last = ignored ? 0 : min((lane + 1) * per_lane, pass.partials_per_row());
  SoftmaxSums sums;
  PL_NO_UNROLL
  for (unsigned partial = lane * per_lane; partial < last; ++partial) {
    SoftmaxSums more = pass.partials[row * pass.partials_per_row() + partial];
    more.weighted *= inverse_temperature;
    add_sums(more, inverse_temperature, &sums);
  }
  PL_NO_UNROLL
  for (unsigned distance = 1; distance < lanes; distance *= 2) {
    const auto next = [distance](double x) { return __shfl_down_sync(kAllLanes, x, distance); };
    add_sums({next(sums.max), next(sums.rest), next(sums.weighted)}, inverse_temperature, &sums);
  }
  return sums;
}

// Computes the results of each row, if they are not given, and prepares its gradient, if it is wanted. The
// bound of one block allows so many registers that none is spilled.
__global__ void __launch_bounds__(kThreads, 1) logits_rows_kernel(LogitsPass pass) {
  const LogitsCall& call = pass.call;
  const unsigned lane = threadIdx.x % kWarp % pass.lanes();
  const unsigned row_of_warp = threadIdx.x % kWarp / pass.lanes();
  const unsigned rows_of_warp = kWarp / pass.lanes();
  for (int64_t first = first_warp() * rows_of_warp; first < call.rows; first += all_warps() * rows_of_warp) {
    const bool is_present = first + row_of_warp < call.rows;
    const int64_t index = is_present ? first + row_of_warp : first;
    const bool ignored = !is_present || is_ignored(pass, index);
    const double temperature = temperature_of(pass, index);
    SoftmaxSums sums;
    if (pass.needs_sums) sums = sums_of_row(pass, index, ignored, lane, 1 / temperature);
    if (!is_present || lane != 0) continue;
    const float x = ignored ? 0.0f : DeviceRow(pass, index).at(target_of(pass, index));
    const float softcap = static_cast<float>(call.softcap);
    const float z = softcap > 0.0f ? softcapped(x, softcap, 1.0f / softcap) : x;
    if (pass.needs_sums) {
      const SoftmaxRow result = ignored ? SoftmaxRow{} : softmax_row(sums, 1 / temperature, z);
      if (call.logprob) call.logprob[index] = static_cast<float>(result.logprob);
      if (call.logsumexp) call.logsumexp[index] = result.logsumexp;
      if (call.entropy) call.entropy[index] = static_cast<float>(result.entropy);
    }
    if (!call.out || ignored) continue;
    RowGradient gradient;
    gradient.of_others = softmax_gradient_of_list(
        temperature, call.logsumexp[index], call.entropy ? call.entropy[index] : 0, call.grad_of(index),
        call.grad_entropy ? call.grad_entropy[index] : 0, call.grad_of_others(index));
    gradient.of_target = gradient_of_target(gradient.of_others, z);
    if (softcap > 0.0f) gradient.of_target *= softcap_derivative(x, 1.0f / softcap);
    pass.gradients[index] = gradient;
  }
}

// Replaces logits by the gradient with respect to them, as if none of them was the target's.
__device__ __forceinline__ void differentiate(const SoftmaxGradient& gradient, float softcap,
                                              float (&x)[kLogitsPerThread]) {
  const float least = least_distance(gradient.log2_factor);
  const auto by_capped = [&](float z) { return gradient_of<true>(gradient, least, z); };
  if (softcap == 0.0f) {
#pragma unroll
    for (int j = 0; j < kLogitsPerThread; ++j) x[j] = by_capped(x[j]);
    return;
  }
  const float inverse = 1.0f / softcap;
  replace_each(x, [&](float each, int) {
    return by_capped(softcapped(each, softcap, inverse)) * softcap_derivative(each, inverse);
  });
}

__device__ __forceinline__ uint16_t narrow(float x, DType dtype) {
  return dtype == DType::kFloat16 ? half_of_float(x) : bfloat16_of_float(x);
}

__device__ __forceinline__ void store_one(char* out, DType dtype, int64_t index, float x) {
  if (dtype == DType::kFloat32)
    __stcs(reinterpret_cast<float*>(out) + index, x);
  else
    __stcs(reinterpret_cast<uint16_t*>(out) + index, narrow(x, dtype));
}

// Stores the numbers of those words of a thread whose bits are set in `whole`. `begin` is the address for the
// tile's first logit.
__device__ __forceinline__ void store_words(char* begin, DType dtype, const OwnLogits& own, unsigned whole,
                                            const float (&x)[kLogitsPerThread]) {
  if (dtype == DType::kFloat32) {
#pragma unroll
    for (int j = 0; j < kLogitsPerThread; j += 4)
      if (whole >> own.word_of(j) & 1)
        __stcs(reinterpret_cast<float4*>(begin) + own.place_of(j) / 4,
               make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]));
  } else {
    uint32_t pairs[kLogitsPerThread / 2];
    if (dtype == DType::kBFloat16) {
#pragma unroll
      for (int j = 0; j < kLogitsPerThread; j += 2) pairs[j / 2] = bfloat16_pair_of_floats(x[j], x[j + 1]);
    } else {
#pragma unroll
      for (int j = 0; j < kLogitsPerThread; j += 2) pairs[j / 2] = half_pair_of_floats(x[j], x[j + 1]);
    }
#pragma unroll
    for (int w = 0; w < kLogitsPerThread / 8; ++w)
      if (whole >> w & 1)
        __stcs(reinterpret_cast<uint4*>(begin) + own.place_of_word(w) / 8,
               uint4{pairs[4 * w], pairs[4 * w + 1], pairs[4 * w + 2], pairs[4 * w + 3]});
  }
}

// Stores the numbers of a thread's logits at the same indices of `out`. Changes x.
__device__ __forceinline__ void store_own(char* out, DType dtype, const OwnLogits& own,
                                          float (&x)[kLogitsPerThread]) {
  char* const begin = out + own.first * size_of(dtype);
  const unsigned whole = bytes_after_word(begin) == 0 ? own.whole : 0;
  store_words(begin, dtype, own, whole, x);
  const unsigned singles = (own.whole | own.singles) & ~whole;
  if (singles != 0)
    replace_each(x, [&](float each, int j) {
      if (own.has(singles, j)) store_one(out, dtype, own.first + own.place_of(j), each);
      return each;
    });
}

// Writes zeros. The threads of a block share the work. `bytes` is even.
__device__ __forceinline__ void write_zeros(char* to, int64_t bytes) {
  const int64_t head = min(bytes, static_cast<int64_t>(-bytes_after_word(to) % kWordBytes));
  const int64_t words = (bytes - head) / kWordBytes;
  PL_NO_UNROLL
  for (int64_t w = threadIdx.x; w < words; w += kThreads)
    __stcs(reinterpret_cast<uint4*>(to + head) + w, uint4{0, 0, 0, 0});
  // The head, and the bytes after the last word.
  PL_NO_UNROLL
  for (int64_t at = 2 * threadIdx.x; at < bytes - words * kWordBytes; at += 2 * kThreads)
    __stcs(reinterpret_cast<uint16_t*>(to + (at < head ? at : words * kWordBytes + at)), uint16_t{0});
}

// Computes the gradient of each row.
__global__ void __launch_bounds__(kThreads, kLogitsBlocks) logits_gradient_kernel(LogitsPass pass) {
  const LogitsCall& call = pass.call;
  const DType out_dtype = call.out_dtype;
  const unsigned rows = static_cast<unsigned>(call.rows);
  for (unsigned number = blockIdx.x; number < pass.count(); number += gridDim.x) {
    const unsigned chunk = number / rows;
    const unsigned index = number - chunk * rows;
    const int64_t first = chunk * kLogitsChunk;
    char* const out = static_cast<char*>(call.out) + index * call.out_stride * size_of(out_dtype);
    const DeviceRow row(pass, index);
    // The end in the row, and among the logits that take part.
    const int64_t end = call.token_ids ? call.vocabulary : min(first + kLogitsChunk, call.vocabulary);
    const int64_t last = call.token_ids ? row.length : end;
    const bool ignored = is_ignored(pass, index);
    const SoftmaxGradient gradient = ignored ? SoftmaxGradient{} : pass.gradients[index].of_others;
    const float softcap = static_cast<float>(call.softcap);
    // The gradient of a support may replace the logits, so it is saved until all of them are read.
    float* const saved = call.token_ids ? pass.grad_of_ids + (row.token_ids - call.token_ids) : nullptr;
    char* const to = saved ? reinterpret_cast<char*>(saved) : out;
    // Tiles begin with a whole word. So a thread writes only words that it has read itself, because the
    // gradient may replace the logits.
    const int64_t before =
        saved ? 0 : bytes_after_word(row.data + first * size_of(row.dtype)) / size_of(row.dtype);
    const int64_t begin = first - before;
    const bool plain = softcap == 0.0f && !saved && bytes_after_word(out + begin * size_of(out_dtype)) == 0;
    PL_NO_UNROLL
    for (int64_t at = ignored ? last : begin; at < last;) {
      const int whole = plain && first <= at ? static_cast<int>((last - at) / kLogitsTile) : 0;
      if (whole > 0) {
        for_whole_tiles(row, at, whole, [&](DType dtype, const OwnLogits& own, float(&x)[kLogitsPerThread]) {
          differentiate(gradient, 0.0f, x);
          // The compiler knows the dtype of the logits, which the gradient has too unless it is float32.
          const DType stored = out_dtype == DType::kFloat32 ? DType::kFloat32 : dtype;
          store_words(out + own.first * size_of(stored), stored, own, own.whole, x);
        });
        at += int64_t{whole} * kLogitsTile;
        continue;
      }
      const OwnLogits own(row, at, first, last, 0);
      at += kLogitsTile;
      if (own.is_empty()) continue;
      float x[kLogitsPerThread];
      load_own<true>(row, own, x);
      differentiate(gradient, softcap, x);
      store_own(to, saved ? DType::kFloat32 : out_dtype, own, x);
    }
    __syncthreads();
    if (ignored || saved) write_zeros(out + first * size_of(out_dtype), (end - first) * size_of(out_dtype));
    if (ignored) continue;
    if (saved) {
      __syncthreads();
      PL_NO_UNROLL
      for (int64_t i = threadIdx.x; i < row.length; i += kThreads)
        store_one(out, out_dtype, row.index(i), saved[i]);
      __syncthreads();
    }
    const int64_t target = target_of(pass, index);
    if (threadIdx.x == 0 && first <= target && target < end)
      store_one(out, out_dtype, target, pass.gradients[index].of_target);
  }
}

// Computes the log-probabilities of the listed tokens, or replaces the gradients of their logits. A thread
// computes one place at a time. Of several places with the same token, the first one has their sum.
__global__ void __launch_bounds__(kThreads, 1) logits_list_kernel(LogitsPass pass) {
  const LogitsCall& call = pass.call;
  const int64_t places = call.list_begin(call.rows);
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < places; i += step) {
    const int64_t row = i / call.list_length;
    const bool is_listed = !is_ignored(pass, row) && call.is_listed(i);
    if (!call.out) {
      const double z = is_listed ? DeviceRow(pass, row).at(call.list_ids[i]) : 0.0f;
      call.list_logprob[i] =
          is_listed ? static_cast<float>(z / temperature_of(pass, row) - call.logsumexp[row]) : 0.0f;
      continue;
    }
    if (!is_listed) continue;
    const int32_t id = call.list_ids[i];
    double g = 0;
    bool is_first = true;
    PL_NO_UNROLL
    for (int64_t j = call.list_begin(row); j < call.list_begin(row + 1); ++j) {
      if (call.list_ids[j] != id) continue;
      is_first = is_first && j >= i;
      g += call.list_grad[j];
    }
    if (!is_first) continue;
    char* const out = static_cast<char*>(call.out) + row * call.out_stride * size_of(call.out_dtype);
    store_one(out, call.out_dtype, id,
              gradient_of_token(pass.gradients[row].of_others, call.list_logprob[i], g));
  }
}

}  // namespace policy_loss::cuda

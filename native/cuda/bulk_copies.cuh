// Bulk copies from device memory to shared memory, which GPUs have from compute capability 9.0 on. One lane
// starts a copy of up to a whole column of a tile. Addresses and sizes must be multiples of 16 bytes.
//
// A barrier in shared memory (an mbarrier) tells when copies have arrived. It goes through phases: a phase
// ends when a lane has announced the number of bytes that belong to it, and this many bytes have arrived. The
// parity of a phase is 0 for the first phase, 1 for the second, 0 for the third, and so on.
//
// Copies write to shared memory through the async proxy, a path of its own. It does not keep the order of the
// lanes' own loads and stores. So a lane that starts copies must call fence_before_copies() before, if lanes
// have read or written their destination or their barrier.
#pragma once

#include "cuda/warp.cuh"

#if !defined(__CUDACC__)
#include <cuda_bulk_copies.h>
#endif

namespace policy_loss::cuda {

// The size of a barrier in shared memory, in bytes.
constexpr int kBarrierBytes = 8;

#if defined(__CUDACC__)

#if defined(__CUDA_ARCH__)
constexpr bool kHasBulkCopies = __CUDA_ARCH__ >= 900;
#else
constexpr bool kHasBulkCopies = false;
#endif

__device__ __forceinline__ constexpr bool has_bulk_copies() {
  return kHasBulkCopies;
}

// Addresses of shared memory are numbers here, because the instructions take them in this form.
using SharedAddress = uint32_t;

__device__ __forceinline__ SharedAddress shared_address(const void* place) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(place));
}

// Returns true in one lane of the warp. All lanes must call it together.
__device__ __forceinline__ bool is_chosen_lane() {
  uint32_t chosen = 0;
  if constexpr (kHasBulkCopies)
    asm volatile(
        "{\n"
        ".reg .pred chosen;\n"
        "elect.sync _|chosen, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, chosen;\n"
        "}"
        : "=r"(chosen));
  return chosen != 0;
}

// Makes a barrier whose phases end after one announcement. The lane must then call fence_before_copies(), and
// other lanes must not use the barrier before they have synchronised with this lane.
__device__ __forceinline__ void make_barrier(SharedAddress barrier) {
  if constexpr (kHasBulkCopies) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
}

__device__ __forceinline__ void fence_before_copies() {
  if constexpr (kHasBulkCopies) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Announces the number of bytes of the barrier's current phase.
__device__ __forceinline__ void announce_bytes(SharedAddress barrier, int bytes) {
  if constexpr (kHasBulkCopies)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Starts a copy that belongs to the barrier's current phase.
__device__ __forceinline__ void start_bulk_copy(SharedAddress to, const void* from, int bytes,
                                                SharedAddress barrier) {
  if constexpr (kHasBulkCopies)
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

// Waits until the barrier's phase with this parity has ended. Only lanes that have waited may read what has
// arrived. A lane must wait for every phase, and must not be more than one phase behind.
__device__ __forceinline__ void wait_for_phase(SharedAddress barrier, unsigned parity) {
  if constexpr (kHasBulkCopies) {
    uint32_t ended;
    do {
      asm volatile(
          "{\n"
          ".reg .pred ended;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
          "selp.u32 %0, 1, 0, ended;\n"
          "}"
          : "=r"(ended)
          : "r"(barrier), "r"(parity)
          : "memory");
    } while (ended == 0);
  }
}

#else

using SharedAddress = char*;

using emulation::announce_bytes;
using emulation::fence_before_copies;
using emulation::has_bulk_copies;
using emulation::is_chosen_lane;
using emulation::make_barrier;
using emulation::start_bulk_copy;
using emulation::wait_for_phase;

inline SharedAddress shared_address(char* place) {
  return place;
}

#endif

}  // namespace policy_loss::cuda

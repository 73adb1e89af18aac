// Emulates what native/cuda/bulk_copies.cuh needs of GPUs with compute capability 9.0: barriers in shared
// memory (mbarriers), and bulk copies whose bytes they count.
//
// The emulation is stricter than a GPU:
// - A copy is made only when lanes wait for its phase. Until then its destination is filled with NaN, so that
//   lanes that read too early, and lanes that still read the former contents, get wrong values.
// - All lanes of a warp must wait for a phase together, and must not skip a phase.
// - A phase must end with exactly the bytes that were announced for it. A GPU would wait for ever.
// - A lane must call fence_before_copies() between a wait and its next copy.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdlib>
#include <vector>

#include "traffic.h"

namespace emulation {

struct BulkCopy {
  char* to;
  const char* from;
  int bytes;
};

struct BarrierState {
  uint64_t word = 0;  // what the barrier holds in shared memory
  // The number of phases that have begun, and by lane the number of phases for which the lane has waited.
  unsigned begun = 0;
  unsigned waited[32] = {};
  bool is_open = false;           // whether no lane has waited for the phase that has begun last
  int announced = 0;              // the bytes of this phase
  std::vector<BulkCopy> started;  // its copies
};

// The states of the barriers that were made last. A barrier holds kBarrierMark plus the number of barriers
// that were made before.
constexpr size_t kBarrierStates = 1 << 14;
constexpr uint64_t kBarrierMark = 0x6ba7000000000000;
inline auto& barrier_states = *new std::array<BarrierState, kBarrierStates>;
inline uint64_t barriers_made = 0;
// Whether each thread of the running block has called fence_before_copies() after it last waited. Blocks that
// run at the same time have host threads of their own.
inline thread_local std::array<bool, 1024> has_fenced = {};

inline bool has_bulk_copies() {
  const char* const capability = std::getenv("POLICY_LOSS_EMULATION_CAPABILITY");
  return !capability || capability[0] == '\0' || std::atoi(capability) >= 90;
}

inline bool is_chosen_lane() {
  return lane() == 0;
}

inline void make_barrier(char* barrier) {
  if (reinterpret_cast<uintptr_t>(barrier) % sizeof(uint64_t) != 0)
    fault("misaligned: a barrier at %p", static_cast<void*>(barrier));
  BarrierState& state = barrier_states[barriers_made % kBarrierStates];
  state = {};
  state.word = kBarrierMark + barriers_made++;
  std::memcpy(barrier, &state.word, sizeof state.word);
  has_fenced[indices.thread.x] = false;
}

inline BarrierState& state_of_barrier(const char* barrier) {
  uint64_t word;
  std::memcpy(&word, barrier, sizeof word);
  BarrierState& state = barrier_states[word % kBarrierStates];
  if (word < kBarrierMark || state.word != word)
    fault("there is no barrier at %p, or something has overwritten it", static_cast<const void*>(barrier));
  return state;
}

inline void fence_before_copies() {
  has_fenced[indices.thread.x] = true;
}

inline void announce_bytes(char* barrier, int bytes) {
  BarrierState& state = state_of_barrier(barrier);
  for (const unsigned waited : state.waited)
    if (waited != state.begun)
      fault("a barrier's phase begins before all lanes have waited for the last one");
  ++state.begun;
  state.is_open = true;
  state.announced = bytes;
}

inline void start_bulk_copy(char* to, const void* from, int bytes, char* barrier) {
  constexpr int unit = 16;
  BarrierState& state = state_of_barrier(barrier);
  if (bytes <= 0 || bytes % unit != 0) fault("a bulk copy of %d bytes", bytes);
  if (reinterpret_cast<uintptr_t>(to) % unit != 0)
    fault("misaligned: a bulk copy to %p", static_cast<void*>(to));
  for (int at = 0; at < bytes; at += unit) check_access(static_cast<const char*>(from) + at, unit);
  if (!has_fenced[indices.thread.x]) fault("a bulk copy without a fence after the last wait");
  std::memset(to, 0xff, static_cast<size_t>(bytes));
  count_copied(static_cast<size_t>(bytes));
  state.started.push_back({to, static_cast<const char*>(from), bytes});
}

// Makes the copies of a phase.
inline void end_phase(BarrierState* state) {
  int arrived = 0;
  for (const BulkCopy& copy : state->started) {
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    arrived += copy.bytes;
  }
  if (arrived != state->announced) fault("a phase of %d bytes gets %d bytes", state->announced, arrived);
  state->started.clear();
  state->is_open = false;
}

inline void wait_for_phase(const char* barrier, unsigned parity, const char* file = __builtin_FILE(),
                           int line = __builtin_LINE()) {
  exchange(0xffffffffu, 0, {file, line});
  BarrierState& state = state_of_barrier(barrier);
  unsigned& waited = state.waited[lane()];
  if (parity != waited % 2)
    fault("%s:%d: lane %d waits for the wrong phase of a barrier", file, line, lane());
  if (waited == state.begun) fault("%s:%d: a phase of a barrier never ends", file, line);
  ++waited;
  has_fenced[indices.thread.x] = false;
  if (state.is_open) end_phase(&state);
}

}  // namespace emulation

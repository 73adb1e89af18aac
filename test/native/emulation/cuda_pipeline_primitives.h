// Emulates CUDA's header of the same name, which copies asynchronously from device memory to shared memory. A
// thread that starts a copy continues at once. It waits for its copies later, group by group.
#pragma once

#include <cuda_runtime.h>

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes) {
  if (bytes != 4 && bytes != 8 && bytes != 16) emulation::fault("a copy of %zu bytes", bytes);
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0) emulation::fault("misaligned: a copy to %p", to);
  emulation::check_access(from, bytes);
  emulation::copy_later(to, from, bytes);
}
inline void __pipeline_commit() {
  emulation::end_group();
}
inline void __pipeline_wait_prior(size_t last) {
  emulation::finish_groups_but(last);
}

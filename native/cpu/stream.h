// Writing a tile out: through the caches, or past them when the result is larger than they are, which spares
// the memory a read of every line that is about to be overwritten.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "math/target.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

PL_FN void write_out(const float* from, int n, float* to, bool stream) {
#if defined(__SSE2__)
  if (stream) {
    int i = 0;
    for (; i < n && reinterpret_cast<uintptr_t>(to + i) % 16 != 0; ++i) to[i] = from[i];
    for (; i + 4 <= n; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
    for (; i < n; ++i) to[i] = from[i];
    return;
  }
#endif
  memcpy(to, from, n * sizeof(float));
}

// Streamed writes are seen by other threads only after this.
PL_FN void finish_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Holds the function that divides work among threads. share_work_by() in cuda.h sets it.
#pragma once

#include "cuda/cuda.h"

namespace policy_loss::cuda {

// Until share_work_by() is called, the calling thread does all items itself.
inline ShareWork sharing = [](int64_t items, void (*item)(void*, int64_t), void* what) {
  for (int64_t i = 0; i < items; ++i) item(what, i);
};

inline ShareWork share_work() {
  return __atomic_load_n(&sharing, __ATOMIC_RELAXED);
}

}  // namespace policy_loss::cuda

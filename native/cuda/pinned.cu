// Page-locked host memory for callers.
#include "cuda/contexts.h"

namespace policy_loss::cuda {

struct PinnedRegion {
  int device;
  PinnedMemory memory;
};

Status make_pinned(int device, int64_t bytes, PinnedRegion** region, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    PinnedRegion* const made = new PinnedRegion{device, {}};
    try {
      context.uploads().run([&] { made->memory.create(static_cast<size_t>(bytes)); });
    } catch (...) {
      delete made;
      throw;
    }
    *region = made;
  });
}

void* pinned_data(const PinnedRegion* region) {
  return region->memory.as();
}

void release(PinnedRegion* region) {
  Problem problem;
  guarded(&problem, [&] { context_of(region->device).uploads().run_always([&] { delete region; }); });
}

}  // namespace policy_loss::cuda

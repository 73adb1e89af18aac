// Page-locked host memory for callers.
#include "cuda/contexts.h"

namespace policy_loss::cuda {

struct PinnedBlock {
  int device;
  PinnedMemory memory;
};

Status make_pinned(int device, int64_t bytes, PinnedBlock** block, Problem* problem) {
  return guarded(problem, [&] {
    Context& context = context_of(device);
    PinnedBlock* const made = new PinnedBlock{device, {}};
    try {
      context.uploads().run([&] { made->memory.create(static_cast<size_t>(bytes)); });
    } catch (...) {
      delete made;
      throw;
    }
    *block = made;
  });
}

void* pinned_data(const PinnedBlock* block) {
  return block->memory.as();
}

void release(PinnedBlock* block) {
  Problem problem;
  guarded(&problem, [&] { context_of(block->device).uploads().run_always([&] { delete block; }); });
}

}  // namespace policy_loss::cuda

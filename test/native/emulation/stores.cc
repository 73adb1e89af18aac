// Emulates the store buffers of multiprocessors. If POLICY_LOSS_EMULATION_STORES is set, what a block stores
// in device memory becomes visible to other blocks only at a __threadfence() of the block, or at the end of
// the grid. Atomic operations are visible at once. So blocks that run one after another see as little of each
// other as blocks that run at the same time.
//
// `visible` holds device memory as other blocks see it. A block works on the memory itself. When it ends, its
// stores that are not visible yet are taken back, and made again at the end of the grid.
#include <vector>

#include "machine.h"

namespace emulation {
namespace {

struct Region {
  unsigned char* memory;
  std::vector<unsigned char> visible;
};
struct Store {
  unsigned char* to;
  unsigned char value;
};

auto& regions = *new std::vector<Region>;  // empty while no grid with store buffers runs
auto& late_stores = *new std::vector<Store>;

}  // namespace

void begin_stores() {
  regions.clear();
  late_stores.clear();
  if (number_from_environment("POLICY_LOSS_EMULATION_STORES", 0) == 0) return;
  for_each_allocation([](unsigned char* memory, size_t bytes) {
    regions.push_back({memory, std::vector<unsigned char>(memory, memory + bytes)});
  });
}

void take_back_stores() {
  for (Region& region : regions) {
    const size_t bytes = region.visible.size();
    if (std::memcmp(region.memory, region.visible.data(), bytes) == 0) continue;
    for (size_t i = 0; i < bytes; ++i)
      if (region.memory[i] != region.visible[i]) late_stores.push_back({region.memory + i, region.memory[i]});
    std::memcpy(region.memory, region.visible.data(), bytes);
  }
}

void end_stores() {
  for (const Store& store : late_stores) *store.to = store.value;
  late_stores.clear();
  regions.clear();
}

void drain_stores() {
  for (Region& region : regions) std::memcpy(region.visible.data(), region.memory, region.visible.size());
}

void publish(const void* address, size_t bytes) {
  const unsigned char* const at = static_cast<const unsigned char*>(address);
  for (Region& region : regions)
    if (at >= region.memory && at < region.memory + region.visible.size())
      std::memcpy(region.visible.data() + (at - region.memory), at, bytes);
}

}  // namespace emulation

// Emulates the store buffers and caches of multiprocessors. If POLICY_LOSS_EMULATION_RESIDENT is set, a block
// sees only those stores of other blocks that CUDA promises to show:
// - What a block stores becomes visible to other blocks at a __threadfence() of the block, or at the end of
//   the grid.
// - What other blocks have stored becomes visible to a block at its next __threadfence(). Until the first
// one,
//   a block sees the memory as it was before the grid.
// - Atomic operations and __ldcg() go to the memory that all blocks share.
// In a quarter of the grids with several resident blocks, stores are made and seen early instead: whenever
// another block goes on. This finds blocks that must not see each other's stores.
//
// A fence is taken to concern all threads of the block. A store that does not change the memory has no
// effect.
//
// The kernels access device memory itself, so it always holds what the running block sees. When another
// resident block goes on, the memory is exchanged.
#include <algorithm>
#include <random>
#include <vector>

#include "machine.h"

namespace emulation {
namespace {

// An allocation of device memory, and where it is in the copies below.
struct Region {
  unsigned char* memory;
  size_t bytes, offset;
};

// What a resident block sees.
struct View {
  std::vector<unsigned char> memory;   // with the block's own stores; not up to date while the block runs
  std::vector<unsigned char> fetched;  // without those that are not visible to others yet
  uint64_t version = 0;                // the version of `shared` at the last fetch
};

struct LateStore {
  size_t at;  // in the copies
  unsigned char value;
};

auto& regions = *new std::vector<Region>;  // by address; empty while no grid with store buffers runs
size_t all_bytes = 0;
auto& views = *new std::vector<View>;             // by resident block
size_t current = 0;                               // the resident block whose view is in the memory
auto& initial = *new std::vector<unsigned char>;  // the memory before the grid
auto& shared = *new std::vector<unsigned char>;   // the memory that all blocks share
uint64_t version = 0;                             // counts the changes of `shared`
auto& late_stores = *new std::vector<LateStore>;  // of the blocks that have ended
bool early = false;                               // whether stores are made and seen early

// Comparing the memory in pieces of this size skips most of it quickly.
constexpr size_t kPiece = 4096;

void save(std::vector<unsigned char>& to) {
  for (const Region& region : regions) std::memcpy(to.data() + region.offset, region.memory, region.bytes);
}

void load(const std::vector<unsigned char>& from) {
  for (const Region& region : regions) std::memcpy(region.memory, from.data() + region.offset, region.bytes);
}

// Calls visit(byte in the memory, index in the copies) for each byte that the running block has stored and
// that is not visible to other blocks yet.
template <class Visit>
void for_each_store(Visit visit) {
  const unsigned char* const fetched = views[current].fetched.data();
  for (const Region& region : regions)
    for (size_t from = 0; from < region.bytes; from += kPiece) {
      const size_t to = std::min(from + kPiece, region.bytes);
      if (std::memcmp(region.memory + from, fetched + region.offset + from, to - from) == 0) continue;
      for (size_t i = from; i < to; ++i)
        if (region.memory[i] != fetched[region.offset + i]) visit(region.memory[i], region.offset + i);
    }
}

// Makes the stores of the running block visible to other blocks.
void drain() {
  View& view = views[current];
  const bool is_new = view.version == version;
  bool any = false;
  for_each_store([&](unsigned char value, size_t at) {
    shared[at] = view.fetched[at] = value;
    any = true;
  });
  if (!any) return;
  ++version;
  if (is_new) view.version = version;
}

// Lets the running block, which must have drained its stores, see what other blocks have stored.
void fetch() {
  View& view = views[current];
  if (view.version == version) return;
  std::memcpy(view.fetched.data(), shared.data(), all_bytes);
  load(shared);
  view.version = version;
}

// Returns the region that contains this byte, or null.
const Region* region_of(const unsigned char* at) {
  const auto next = std::upper_bound(regions.begin(), regions.end(), at,
                                     [](const unsigned char* a, const Region& b) { return a < b.memory; });
  if (next == regions.begin()) return nullptr;
  const Region& region = *std::prev(next);
  return at < region.memory + region.bytes ? &region : nullptr;
}

}  // namespace

void begin_stores(size_t residents) {
  for_each_allocation([](unsigned char* memory, size_t bytes) {
    regions.push_back({memory, bytes, all_bytes});
    all_bytes += bytes;
  });
  initial.resize(all_bytes);
  save(initial);
  shared = initial;
  version = 0;
  if (views.size() < residents) views.resize(residents);
  static std::mt19937_64 random(4);
  early = residents > 1 && random() % 4 == 0;
}

void end_stores() {
  if (regions.empty()) return;
  for (const LateStore& store : late_stores) shared[store.at] = store.value;
  load(shared);
  late_stores.clear();
  regions.clear();
  all_bytes = 0;
}

void begin_block_stores(size_t resident) {
  if (regions.empty()) return;
  current = resident;
  View& view = views[resident];
  view.fetched = early ? shared : initial;
  view.version = early ? version : 0;
  load(view.fetched);
}

void end_block_stores() {
  if (regions.empty()) return;
  if (early) return drain();
  for_each_store([](unsigned char value, size_t at) { late_stores.push_back({at, value}); });
}

void leave_stores() {
  if (regions.empty()) return;
  if (early) drain();
  views[current].memory.resize(all_bytes);
  save(views[current].memory);
}

void enter_stores(size_t resident) {
  if (regions.empty()) return;
  current = resident;
  load(views[current].memory);
  if (early) fetch();
}

void fence() {
  if (regions.empty()) return;
  may_switch_block(kAtFence);
  drain();
  fetch();
  may_switch_block(kAtFence);
}

void begin_atomic(void* address, size_t bytes) {
  unsigned char* const at = static_cast<unsigned char*>(address);
  const Region* const region = region_of(at);
  if (!region) return;
  may_switch_block(kAtAtomic);
  const size_t first = region->offset + static_cast<size_t>(at - region->memory);
  unsigned char* const fetched = views[current].fetched.data() + first;
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] != fetched[i]) shared[first + i] = at[i];  // an earlier store of the block comes first
    at[i] = fetched[i] = shared[first + i];
  }
}

void end_atomic(const void* address, size_t bytes) {
  const unsigned char* const at = static_cast<const unsigned char*>(address);
  const Region* const region = region_of(at);
  if (!region) return;
  const size_t first = region->offset + static_cast<size_t>(at - region->memory);
  std::memcpy(shared.data() + first, at, bytes);
  std::memcpy(views[current].fetched.data() + first, at, bytes);
  ++version;
  may_switch_block(kAtAtomic);
}

void load_shared(void* to, const void* from, size_t bytes) {
  const unsigned char* const at = static_cast<const unsigned char*>(from);
  const Region* const region = region_of(at);
  std::memcpy(to, at, bytes);
  if (!region) return;
  const size_t first = region->offset + static_cast<size_t>(at - region->memory);
  const bool is_own = std::memcmp(at, views[current].fetched.data() + first, bytes) != 0;
  if (!is_own) std::memcpy(to, shared.data() + first, bytes);
}

}  // namespace emulation

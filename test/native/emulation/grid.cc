// Runs the blocks of a grid: one after another, or several at the same time (the resident blocks).
//
// Each resident block has a host thread of its own. Only one of these threads runs at a time. It lets another
// one go on at random points: at atomic operations, fences, barriers and warp collectives. A block that is
// interrupted there may stall until all others have ended, because most mistakes show only if one block is
// late. The random numbers are the same in every run. When a block has ended, its host thread runs the next
// block of the grid.
#include <algorithm>
#include <deque>
#include <random>
#include <semaphore>
#include <thread>
#include <vector>

#include "block.h"
#include "traffic.h"

namespace emulation {
namespace {

// A block stalls at one of this many interruptions at points of each kind, unless another one stalls already.
constexpr uint64_t kStall[kSwitchPoints] = {2, 64, 64, 64};
// At first, a block is interrupted at one of this many points of each kind. Each time it has been interrupted
// kOften times at points of a kind, this number doubles, so that long kernels do not take too long.
constexpr uint64_t kPoints[kSwitchPoints] = {2, 4, 64, 256};
constexpr unsigned kOften = 16;

struct Resident {
  Block block;
  std::binary_semaphore turn{0};               // released when the resident block may go on
  bool has_ended = false;                      // whether no block is left for it
  unsigned interruptions[kSwitchPoints] = {};  // of the block that runs, by kind of point
};

auto& residents = *new std::deque<Resident>;  // grows, and is never destroyed
size_t resident_count = 0;                    // of the grid that runs
size_t running_resident = 0;
Resident* stalled = nullptr;  // the resident block that goes on when all others have ended

std::vector<size_t> blocks_in_order;  // of the grid
size_t blocks_begun = 0;

std::mt19937_64 random_switch;
int64_t switches = 0;

// Returns the number of resident blocks that the environment asks for, or 0 if blocks have no store buffers.
size_t wanted_residents() {
  const uint64_t wanted = number_from_environment("POLICY_LOSS_EMULATION_RESIDENT", 0);
#if ADDRESS_SANITIZER
  return std::min<uint64_t>(wanted, 1);
#else
  return wanted;
#endif
}

// Runs blocks of the grid until none is left, or until a fault.
void run_blocks(size_t self, const Launch& launch, std::mt19937_64& random) {
  running_resident = self;
  while (blocks_begun < blocks_in_order.size() && !has_fault()) {
    for (unsigned& n : residents[self].interruptions) n = 0;
    const size_t index = blocks_in_order[blocks_begun++];
    begin_block_stores(self);
    run_block(residents[self].block, launch, index, random);
    end_block_stores();
  }
}

// Returns the resident block that goes on, chosen at random, or null if all have ended.
Resident* next_resident() {
  std::vector<Resident*> ready;
  for (size_t i = 0; i < resident_count; ++i)
    if (!residents[i].has_ended && &residents[i] != stalled) ready.push_back(&residents[i]);
  return ready.empty() ? std::exchange(stalled, nullptr) : ready[random_switch() % ready.size()];
}

void run_in_turns(const Launch& launch, std::mt19937_64& random) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < resident_count; ++i) {
    residents[i].has_ended = false;
    threads.emplace_back([&, i] {
      residents[i].turn.acquire();
      run_blocks(i, launch, random);
      residents[i].has_ended = true;
      if (Resident* const other = next_resident()) other->turn.release();
    });
  }
  residents[0].turn.release();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int64_t block_switches() {
  const Lock lock(mutex);
  return switches;
}

void may_switch_block(SwitchPoint point) {
  if (resident_count < 2) return;
  const size_t index = running_resident;
  Resident& self = residents[index];
  unsigned& interruptions = self.interruptions[point];
  if (random_switch() % (kPoints[point] << std::min(interruptions / kOften, 20u)) != 0) return;
  if (!stalled && random_switch() % kStall[point] == 0) stalled = &self;
  Resident* const other = next_resident();
  if (other == &self) return;
  ++interruptions;
  ++switches;
  const Indices indices_of_thread = indices;
  leave_stores();
  other->turn.release();
  self.turn.acquire();
  running_resident = index;
  block = &self.block;
  indices = indices_of_thread;
  enter_stores(index);
  if (has_fault()) block->fibers.abandon();
}

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel) {
  // After a fault, no kernel runs until a call of the runtime has reported the fault.
  if (has_fault()) return;
  static uint64_t launches = 0;
  ++launches;
  Launch launch{grid, block, shared_bytes, kernel, shuffle_seed(), false};
  std::mt19937_64 random(launch.seed * 1000003 + launches);
  random_switch.seed(launch.seed * 1000003 + launches);
  launch.warps_take_turns = launch.seed != 0 && random() % 2 == 0;
  blocks_in_order = numbers_in_order(grid.x, launch, random);
  blocks_begun = 0;
  begin_counting(grid.x);
  // A grid with one block has no other blocks that could see its stores.
  const size_t wanted = grid.x > 1 ? wanted_residents() : 0;
  resident_count = std::min<size_t>(std::max<size_t>(wanted, 1), grid.x);
  // The first blocks begin at the same time, so any of them may be the first.
  std::shuffle(blocks_in_order.begin(), blocks_in_order.begin() + static_cast<ptrdiff_t>(resident_count),
               random_switch);
  while (residents.size() < resident_count) residents.emplace_back();
  if (wanted > 0) begin_stores(resident_count);
  if (resident_count > 1)
    run_in_turns(launch, random);
  else
    run_blocks(0, launch, random);
  end_stores();
  check_guards();
}

}  // namespace emulation

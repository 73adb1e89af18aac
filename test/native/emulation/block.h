// The state of a block of threads that runs.
#pragma once

#include <random>
#include <vector>

#include "fibers.h"
#include "machine.h"

namespace emulation {

// A launch of a kernel.
struct Launch {
  dim3 grid, block;
  size_t shared_bytes;
  const std::function<void()>& kernel;
  uint64_t seed;          // 0 if the launch is not shuffled
  bool warps_take_turns;  // whether warps take turns at every collective
};

struct LateCopy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Thread {
  enum State { kReady, kAtBarrier, kAtExchange, kDone };
  State state = kReady;
  Site site;
  unsigned mask = 0;
  std::vector<LateCopy> copies;  // the copies that are not made yet, in order
  std::vector<size_t> groups;    // the number of copies in each group that is not made yet
  size_t ungrouped = 0;          // the number of copies that are in no group yet
};

struct Warp {
  uint64_t given[kWarp];   // the values that lanes have handed in
  uint64_t result[kWarp];  // the values of the last exchange
};

void run_thread();

// A thread and the fiber that runs it have the same index.
struct Block {
  const Launch* launch = nullptr;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Fibers fibers{run_thread};
  SharedMemory shared;
  size_t running = 0;      // the running thread
  bool in_kernel = false;  // whether a thread runs
  // The order in which the threads run. The next turns belong to the threads from order[next_turn] to
  // order[last_turn − 1].
  std::vector<size_t> order;
  size_t next_turn = 0, last_turn = 0;
};

// The block that runs now.
extern Block* block;

// Returns the numbers from 0 to n − 1. They are in random order if the launch is shuffled.
std::vector<size_t> numbers_in_order(size_t n, const Launch& launch, std::mt19937_64& random);
// Makes `b` the running block, and runs it as block number `index` of a launch.
void run_block(Block& b, const Launch& launch, size_t index, std::mt19937_64& random);

}  // namespace emulation

// Emulates the blocks of threads of a kernel. Chooses which thread runs next, makes threads wait for each
// other, and delays asynchronous copies until a thread waits for them.
//
// A thread runs until it waits at a barrier or at a warp collective (a shuffle, for example). Then the next
// thread of the warp runs. When all threads of a warp wait at a barrier, the next warp runs. With
// POLICY_LOSS_EMULATION_SHUFFLE, blocks, warps and lanes run in random order. In half of the launches, warps
// then also take turns at every collective.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "fibers.h"
#include "machine.h"
#include "traffic.h"

namespace emulation {

Indices indices;

namespace {

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

// The state of the running block. A thread and the fiber that runs it have the same index.
std::vector<Thread> threads;
std::vector<Warp> warps;
size_t running = 0;
const std::function<void()>* kernel_of_block = nullptr;
bool in_kernel = false;

// The order in which the threads of the block run. The next turns belong to the threads from order[next_turn]
// to order[last_turn − 1].
std::vector<size_t> order;
size_t next_turn = 0, last_turn = 0;

uint64_t seed_of_launch = 0;  // 0 if the launch is not shuffled
std::mt19937_64 late_or_early(2);
int64_t copied = 0;

constexpr size_t kNobody = ~size_t{0};

// Makes the next thread that is ready the running one, and returns its index. Returns kNobody if no thread is
// ready.
size_t take_turn() {
  while (next_turn < last_turn) {
    const size_t thread = order[next_turn++];
    if (threads[thread].state != Thread::kReady) continue;
    running = thread;
    indices.thread.x = static_cast<unsigned>(thread);
    return thread;
  }
  return kNobody;
}

// Runs those threads from order[first] to order[last − 1] that are ready. Returns whether there were any.
bool run_ready(size_t first, size_t last) {
  next_turn = first;
  last_turn = last;
  const size_t thread = take_turn();
  if (thread == kNobody) return false;
  in_kernel = true;
  run_fiber(thread);
  in_kernel = false;
  return true;
}

// Gives the running thread this state, and lets other threads run until it may continue.
void wait(Thread::State state, Site site) {
  const size_t self = running;
  threads[self].state = state;
  threads[self].site = site;
  const size_t next = take_turn();
  if (next == kNobody)
    leave_fibers(self);
  else
    switch_fiber(self, next);
}

void run_thread() {
  (*kernel_of_block)();
  wait(Thread::kDone, {});
}

// If all threads of the block wait at the same barrier, lets them continue and returns true.
bool release_barrier() {
  for (const Thread& thread : threads)
    if (thread.state != Thread::kAtBarrier || !(thread.site == threads[0].site)) return false;
  for (Thread& thread : threads) thread.state = Thread::kReady;
  return true;
}

// Returns whether all lanes in the mask of the thread `leader` wait at the same warp collective as that
// thread. `first` is the index of the warp's first thread.
bool is_complete(size_t first, const Thread& leader) {
  for (size_t lane = 0; lane < kWarp; ++lane) {
    if ((leader.mask >> lane & 1) == 0) continue;
    if (first + lane >= threads.size()) return false;
    const Thread& other = threads[first + lane];
    if (other.state != Thread::kAtExchange || other.mask != leader.mask || !(other.site == leader.site))
      return false;
  }
  return true;
}

// Completes each collective of a warp that all lanes in its mask have reached, and lets these lanes continue.
// Returns whether there was one.
bool release_exchanges(size_t warp) {
  bool any = false;
  const size_t first = warp * kWarp;
  for (size_t i = first; i < first + kWarp && i < threads.size(); ++i) {
    if (threads[i].state != Thread::kAtExchange || !is_complete(first, threads[i])) continue;
    const unsigned mask = threads[i].mask;
    for (size_t lane = 0; lane < kWarp; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      warps[warp].result[lane] = warps[warp].given[lane];
      threads[first + lane].state = Thread::kReady;
    }
    any = true;
  }
  return any;
}

std::string describe(size_t index) {
  const Thread& thread = threads[index];
  const std::string who = "thread " + std::to_string(index);
  if (thread.state == Thread::kDone) return who + " has ended";
  return who + (thread.state == Thread::kAtBarrier ? " is at the barrier " : " is at the shuffle ") +
         thread.site.file + ":" + std::to_string(thread.site.line);
}

// Called when no thread of the block can continue. Records a fault unless all of them have ended.
void check_all_done() {
  size_t waiting = 0;
  while (waiting < threads.size() && threads[waiting].state == Thread::kDone) ++waiting;
  if (waiting == threads.size()) return;
  const auto waits_alike = [&](const Thread& thread) {
    return thread.state == threads[waiting].state && thread.site == threads[waiting].site &&
           thread.mask == threads[waiting].mask;
  };
  size_t other = 0;
  while (other < threads.size() && waits_alike(threads[other])) ++other;
  record_fault("divergence in block " + std::to_string(indices.block.x) + ": " + describe(waiting) + ", " +
               (other < threads.size() ? describe(other) : "a lane of its mask is missing"));
}

// Runs a warp until all its threads have ended or wait at a barrier. `turn` is the warp's position in the
// order. Returns whether any thread ran.
bool run_warp(size_t turn) {
  bool progress = false;
  const size_t first = turn * kWarp, last = std::min(first + kWarp, order.size());
  const size_t warp = order[first] / kWarp;
  while (!has_fault() && (run_ready(first, last) || release_exchanges(warp))) progress = true;
  return progress;
}

// Runs the threads of all warps up to their next collective or barrier. Returns whether any thread ran or may
// continue.
bool run_interleaved() {
  bool progress = run_ready(0, order.size());
  for (size_t warp = 0; warp < warps.size(); ++warp) progress |= release_exchanges(warp);
  return progress;
}

void run_block(bool interleaved) {
  for (Thread& thread : threads) {
    thread.state = Thread::kReady;
    thread.mask = 0;
    thread.copies.clear();
    thread.groups.clear();
    thread.ungrouped = 0;
  }
  for (;;) {
    bool progress = false;
    if (interleaved)
      progress = run_interleaved();
    else
      for (size_t turn = 0; turn < warps.size() && !has_fault(); ++turn) progress |= run_warp(turn);
    if (has_fault()) return;
    progress |= release_barrier();
    if (!progress) return check_all_done();
  }
}

// Returns the numbers from 0 to n − 1. They are in random order if this launch is shuffled.
std::vector<size_t> numbers_in_order(size_t n, std::mt19937_64& random) {
  std::vector<size_t> numbers(n);
  for (size_t i = 0; i < n; ++i) numbers[i] = i;
  for (size_t i = n; seed_of_launch != 0 && i > 1; --i) std::swap(numbers[i - 1], numbers[random() % i]);
  return numbers;
}

// Returns the order in which the n threads of a block run. The threads of each warp run one after another,
// unless `interleaved` is set.
std::vector<size_t> order_of_threads(size_t n, bool interleaved, std::mt19937_64& random) {
  if (interleaved) return numbers_in_order(n, random);
  std::vector<size_t> all;
  for (const size_t warp : numbers_in_order((n + kWarp - 1) / kWarp, random))
    for (const size_t lane : numbers_in_order(std::min(kWarp, n - warp * kWarp), random))
      all.push_back(warp * kWarp + lane);
  return all;
}

}  // namespace

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel) {
  // After a fault, no kernel runs until a call of the runtime has reported the fault.
  if (has_fault()) return;
  static uint64_t launches = 0;
  ++launches;
  seed_of_launch = shuffle_seed();
  std::mt19937_64 random(seed_of_launch * 1000003 + launches);
  const bool interleaved = seed_of_launch != 0 && random() % 2 == 0;
  threads.resize(block.x);
  warps.resize((block.x + kWarp - 1) / kWarp);
  make_fibers(block.x, run_thread);
  kernel_of_block = &kernel;
  indices.block_size = block;
  indices.grid_size = grid;
  order = order_of_threads(block.x, interleaved, random);
  begin_stores();
  for (const size_t index : numbers_in_order(grid.x, random)) {
    indices.block = dim3(static_cast<unsigned>(index));
    if (seed_of_launch != 0) order = order_of_threads(block.x, interleaved, random);
    fill_shared(shared_bytes);
    run_block(interleaved);
    check_shared_guards(shared_bytes);
    if (has_fault()) break;
    take_back_stores();
  }
  end_stores();
  // A fault stops fibers in the middle of a kernel, so they cannot be reused.
  if (has_fault()) drop_fibers();
  check_guards();
}

void wait_at_barrier(Site site) {
  wait(Thread::kAtBarrier, site);
}

const uint64_t* exchange(unsigned mask, uint64_t value, Site site) {
  const size_t self = running;
  if ((mask >> self % kWarp & 1) == 0)
    fault("%s:%d: lane %d is not in the mask of its own shuffle", site.file, site.line, lane());
  threads[self].mask = mask;
  warps[self / kWarp].given[self % kWarp] = value;
  wait(Thread::kAtExchange, site);
  return warps[running / kWarp].result;
}

void fault(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  record_fault(text);
  if (!in_kernel) std::abort();
  abandon_fiber();
}

int64_t bytes_copied() {
  const Lock lock(mutex);
  return copied;
}

// If this launch is shuffled, some copies are made at once instead of later.
void copy_later(void* to, const void* from, size_t bytes) {
  copied += static_cast<int64_t>(bytes);
  if (seed_of_launch != 0 && late_or_early() % 4 == 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  threads[running].copies.push_back({to, from, bytes});
  ++threads[running].ungrouped;
}

void end_group() {
  Thread& thread = threads[running];
  thread.groups.push_back(std::exchange(thread.ungrouped, 0));
}

void finish_groups_but(size_t last) {
  Thread& thread = threads[running];
  if (thread.groups.size() <= last) return;
  const auto first_kept = thread.groups.end() - static_cast<ptrdiff_t>(last);
  ptrdiff_t copies = 0;
  for (auto group = thread.groups.begin(); group != first_kept; ++group)
    copies += static_cast<ptrdiff_t>(*group);
  for (ptrdiff_t i = 0; i < copies; ++i) {
    const LateCopy& copy = thread.copies[static_cast<size_t>(i)];
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + copies);
  thread.groups.erase(thread.groups.begin(), first_kept);
}

}  // namespace emulation

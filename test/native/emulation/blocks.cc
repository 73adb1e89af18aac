// Emulates the blocks of threads of a kernel. Chooses which thread runs next, makes threads wait for each
// other, and delays asynchronous copies until a thread waits for them.
//
// A thread runs until it waits at a barrier or at a warp collective (a shuffle, for example). Then the next
// thread of the warp runs. When all threads of a warp wait at a barrier, the next warp runs. With
// POLICY_LOSS_EMULATION_SHUFFLE, warps and lanes run in random order. In half of the launches, warps then
// also take turns at every collective.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "block.h"
#include "traffic.h"

namespace emulation {

Indices indices;
Block* block = nullptr;

namespace {

std::mt19937_64 late_or_early(2);
int64_t copied = 0;
std::vector<int64_t> copied_by_blocks;

constexpr size_t kNobody = ~size_t{0};

// Makes the next thread that is ready the running one, and returns its index. Returns kNobody if no thread is
// ready.
size_t take_turn() {
  while (block->next_turn < block->last_turn) {
    const size_t thread = block->order[block->next_turn++];
    if (block->threads[thread].state != Thread::kReady) continue;
    block->running = thread;
    indices.thread.x = static_cast<unsigned>(thread);
    return thread;
  }
  return kNobody;
}

// Runs those threads from order[first] to order[last − 1] that are ready. Returns whether there were any.
bool run_ready(size_t first, size_t last) {
  block->next_turn = first;
  block->last_turn = last;
  const size_t thread = take_turn();
  if (thread == kNobody) return false;
  block->in_kernel = true;
  block->fibers.run(thread);
  block->in_kernel = false;
  return true;
}

// Gives the running thread this state, and lets other threads run until it may continue.
void wait(Thread::State state, Site site) {
  if (state != Thread::kDone) may_switch_block(state == Thread::kAtBarrier ? kAtBarrier : kAtCollective);
  const size_t self = block->running;
  block->threads[self].state = state;
  block->threads[self].site = site;
  const size_t next = take_turn();
  if (next == kNobody)
    block->fibers.leave(self);
  else
    block->fibers.switch_to(self, next);
}

// If all threads of the block wait at the same barrier, lets them continue and returns true.
bool release_barrier() {
  for (const Thread& thread : block->threads)
    if (thread.state != Thread::kAtBarrier || !(thread.site == block->threads[0].site)) return false;
  for (Thread& thread : block->threads) thread.state = Thread::kReady;
  return true;
}

// Returns whether all lanes in the mask of the thread `leader` wait at the same warp collective as that
// thread. `first` is the index of the warp's first thread.
bool is_complete(size_t first, const Thread& leader) {
  for (size_t lane = 0; lane < kWarp; ++lane) {
    if ((leader.mask >> lane & 1) == 0) continue;
    if (first + lane >= block->threads.size()) return false;
    const Thread& other = block->threads[first + lane];
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
  for (size_t i = first; i < first + kWarp && i < block->threads.size(); ++i) {
    if (block->threads[i].state != Thread::kAtExchange || !is_complete(first, block->threads[i])) continue;
    const unsigned mask = block->threads[i].mask;
    for (size_t lane = 0; lane < kWarp; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      block->warps[warp].result[lane] = block->warps[warp].given[lane];
      block->threads[first + lane].state = Thread::kReady;
    }
    any = true;
  }
  return any;
}

std::string describe(size_t index) {
  const Thread& thread = block->threads[index];
  const std::string who = "thread " + std::to_string(index);
  if (thread.state == Thread::kDone) return who + " has ended";
  return who + (thread.state == Thread::kAtBarrier ? " is at the barrier " : " is at the shuffle ") +
         thread.site.file + ":" + std::to_string(thread.site.line);
}

// Called when no thread of the block can continue. Records a fault unless all of them have ended.
void check_all_done() {
  size_t waiting = 0;
  while (waiting < block->threads.size() && block->threads[waiting].state == Thread::kDone) ++waiting;
  if (waiting == block->threads.size()) return;
  const auto waits_alike = [&](const Thread& thread) {
    return thread.state == block->threads[waiting].state && thread.site == block->threads[waiting].site &&
           thread.mask == block->threads[waiting].mask;
  };
  size_t other = 0;
  while (other < block->threads.size() && waits_alike(block->threads[other])) ++other;
  record_fault("divergence in block " + std::to_string(indices.block.x) + ": " + describe(waiting) + ", " +
               (other < block->threads.size() ? describe(other) : "a lane of its mask is missing"));
}

// Runs a warp until all its threads have ended or wait at a barrier. `turn` is the warp's position in the
// order. Returns whether any thread ran.
bool run_warp(size_t turn) {
  bool progress = false;
  const size_t first = turn * kWarp, last = std::min(first + kWarp, block->order.size());
  const size_t warp = block->order[first] / kWarp;
  while (!has_fault() && (run_ready(first, last) || release_exchanges(warp))) progress = true;
  return progress;
}

// Runs the threads of all warps up to their next collective or barrier. Returns whether any thread ran or may
// continue.
bool run_interleaved() {
  bool progress = run_ready(0, block->order.size());
  for (size_t warp = 0; warp < block->warps.size(); ++warp) progress |= release_exchanges(warp);
  return progress;
}

// Returns the order in which the n threads of a block run. The threads of each warp run one after another,
// unless warps take turns.
std::vector<size_t> order_of_threads(size_t n, const Launch& launch, std::mt19937_64& random) {
  if (launch.warps_take_turns) return numbers_in_order(n, launch, random);
  std::vector<size_t> all;
  for (const size_t warp : numbers_in_order((n + kWarp - 1) / kWarp, launch, random))
    for (const size_t lane : numbers_in_order(std::min(kWarp, n - warp * kWarp), launch, random))
      all.push_back(warp * kWarp + lane);
  return all;
}

void make_threads(size_t n) {
  block->threads.resize(n);
  block->warps.resize((n + kWarp - 1) / kWarp);
  block->fibers.make(n);
  for (Thread& thread : block->threads) {
    thread.state = Thread::kReady;
    thread.mask = 0;
    thread.copies.clear();
    thread.groups.clear();
    thread.ungrouped = 0;
  }
}

// Runs the threads of the block until all have ended, or until a fault.
void run_threads() {
  for (;;) {
    bool progress = false;
    if (block->launch->warps_take_turns)
      progress = run_interleaved();
    else
      for (size_t turn = 0; turn < block->warps.size() && !has_fault(); ++turn) progress |= run_warp(turn);
    if (has_fault()) return;
    progress |= release_barrier();
    if (!progress) return check_all_done();
  }
}

}  // namespace

std::vector<size_t> numbers_in_order(size_t n, const Launch& launch, std::mt19937_64& random) {
  std::vector<size_t> numbers(n);
  for (size_t i = 0; i < n; ++i) numbers[i] = i;
  for (size_t i = n; launch.seed != 0 && i > 1; --i) std::swap(numbers[i - 1], numbers[random() % i]);
  return numbers;
}

void run_thread() {
  block->launch->kernel();
  wait(Thread::kDone, {});
}

void run_block(Block& b, const Launch& launch, size_t index, std::mt19937_64& random) {
  block = &b;
  block->launch = &launch;
  indices.block = dim3(static_cast<unsigned>(index));
  indices.block_size = launch.block;
  indices.grid_size = launch.grid;
  make_threads(launch.block.x);
  block->order = order_of_threads(launch.block.x, launch, random);
  block->shared.fill(launch.shared_bytes);
  run_threads();
  block->shared.check_guards(launch.shared_bytes);
  // A fault stops fibers in the middle of a kernel, so they cannot be reused.
  if (has_fault()) block->fibers.drop();
}

char* launch_memory() {
  return block->shared.begin();
}

void wait_at_barrier(Site site) {
  wait(Thread::kAtBarrier, site);
}

const uint64_t* exchange(unsigned mask, uint64_t value, Site site) {
  const size_t self = block->running;
  if ((mask >> self % kWarp & 1) == 0)
    fault("%s:%d: lane %d is not in the mask of its own shuffle", site.file, site.line, lane());
  block->threads[self].mask = mask;
  block->warps[self / kWarp].given[self % kWarp] = value;
  wait(Thread::kAtExchange, site);
  return block->warps[block->running / kWarp].result;
}

void fault(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  record_fault(text);
  if (!block || !block->in_kernel) std::abort();
  block->fibers.abandon();
}

int64_t bytes_copied() {
  const Lock lock(mutex);
  return copied;
}

std::vector<int64_t> bytes_copied_by_blocks() {
  const Lock lock(mutex);
  return copied_by_blocks;
}

void begin_counting(size_t blocks) {
  copied_by_blocks.assign(blocks, 0);
}

void count_copied(size_t bytes) {
  copied += static_cast<int64_t>(bytes);
  copied_by_blocks[indices.block.x] += static_cast<int64_t>(bytes);
}

// If this launch is shuffled, some copies are made at once instead of later.
void copy_later(void* to, const void* from, size_t bytes) {
  count_copied(bytes);
  if (block->launch->seed != 0 && late_or_early() % 4 == 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  block->threads[block->running].copies.push_back({to, from, bytes});
  ++block->threads[block->running].ungrouped;
}

void end_group() {
  Thread& thread = block->threads[block->running];
  thread.groups.push_back(std::exchange(thread.ungrouped, 0));
}

void finish_groups_but(size_t last) {
  Thread& thread = block->threads[block->running];
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

#include "cpu/pool.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#if defined(__linux__)
#include <sys/resource.h>
#endif

namespace policy_loss::cpu {
namespace {

// Lowers the priority of a worker thread. There are as many workers as cores, so JavaScript's thread can run
// only on a core that a worker leaves. With a slightly lower priority, the worker leaves it at once.
// Otherwise the lower priority costs nothing.
void yield_to_event_loop() {
#if defined(__linux__)
  setpriority(PRIO_PROCESS, 0, 5);  // 0 is the calling thread here, not the process
#endif
}

// Tells the processor that this thread is waiting in a loop.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace

bool Task::has_pieces_left() const {
  const uint64_t next = next_.load();
  const int64_t piece = static_cast<int64_t>(next & ((1ull << kPhaseShift) - 1));
  return piece < pieces_[next >> kPhaseShift];
}

bool Task::soon_has_pieces() const {
  // Waits in a loop instead of sleeping. The other threads finish their last pieces and compute the weights
  // within microseconds, which is less time than a thread takes to sleep and wake.
  constexpr auto kPatience = std::chrono::microseconds(50);
  const auto start = std::chrono::steady_clock::now();
  while (!has_pieces_left()) {
    if (finished_.load(std::memory_order_relaxed)) return false;
    for (int i = 0; i < 16; ++i) pause();
    if (std::chrono::steady_clock::now() - start > kPatience) return false;
  }
  return true;
}

Pool::Pool() : limit_(std::max(1u, std::thread::hardware_concurrency())) {}

Pool& Pool::shared() {
  static Pool* pool = new Pool;
  return *pool;
}

void Pool::set_threads(int threads) {
  std::lock_guard lock(mutex_);
  limit_ = std::max(1, threads);
  wake_.notify_all();
}

int Pool::threads() {
  std::lock_guard lock(mutex_);
  return limit_;
}

void Pool::submit(std::shared_ptr<Task> task) {
  if (!advance(task, false)) work(task);  // no worker thread exists, so the caller does the work
}

void Pool::run(std::shared_ptr<Task> task) {
  {
    std::lock_guard lock(mutex_);
    ++working_;
  }
  try {
    advance(task, true);
  } catch (...) {
    std::lock_guard lock(mutex_);
    --working_;
    wake_.notify_one();
    throw;
  }
  std::unique_lock lock(mutex_, std::defer_lock);
  while (true) {
    do work(task);
    while (task->soon_has_pieces());
    lock.lock();
    progress_.wait(lock, [&] { return task->finished_ || task->has_pieces_left(); });
    if (task->finished_) break;
    lock.unlock();
  }
  --working_;
  if (!tasks_.empty()) wake_.notify_one();
}

bool Pool::help(std::chrono::microseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  std::unique_lock lock(mutex_);
  const auto has_task = [this] { return !tasks_.empty() && tasks_.back()->is_quick(); };
  if (working_ >= limit_) return has_task();
  ++working_;
  while (has_task() && std::chrono::steady_clock::now() < end) {
    const std::shared_ptr<Task> task = tasks_.back();
    tasks_.pop_back();
    lock.unlock();
    work(task);
    lock.lock();
  }
  --working_;
  return has_task();
}

bool Pool::advance(const std::shared_ptr<Task>& task, bool works) {
  const uint64_t phase = (task->next_.load() >> Task::kPhaseShift) + 1;
  const int64_t pieces = task->next_phase();
  if (pieces == 0) {
    task->done();
    std::lock_guard lock(mutex_);
    task->finished_ = true;
    progress_.notify_all();
    return true;
  }
  task->pieces_[phase] = pieces;
  task->unfinished_.store(pieces);
  std::lock_guard lock(mutex_);
  // Waking another thread takes longer than a small piece, so a thread that works does not wake one for a
  // piece that it takes itself.
  const int64_t helpers = std::min<int64_t>(works ? pieces - 1 : pieces, limit_);
  start_workers(helpers);
  if (helpers > 0) tasks_.push_back(task);
  // Nothing may fail from here on: other threads now take pieces of the task, so the caller must stay and
  // wait for them.
  task->next_.store(phase << Task::kPhaseShift);
  for (int64_t i = 0; i < helpers; ++i) wake_.notify_one();
  progress_.notify_all();
  return !workers_.empty();
}

// Starts worker threads when they are first needed. If the system refuses to start one, the existing threads
// do all the work.
void Pool::start_workers(int64_t pieces) {
  while (static_cast<int>(workers_.size()) < limit_ && static_cast<int64_t>(workers_.size()) < pieces) try {
      workers_.emplace_back([this] { worker(); });
      workers_.back().detach();
    } catch (const std::system_error&) {
      return;
    }
}

void Pool::work(const std::shared_ptr<Task>& task) {
  while (true) {
    const uint64_t taken = task->next_.fetch_add(1);
    const uint64_t phase = taken >> Task::kPhaseShift;
    const int64_t piece = static_cast<int64_t>(taken & ((1ull << Task::kPhaseShift) - 1));
    if (piece >= task->pieces_[phase]) return;
    task->run(piece);
    if (task->unfinished_.fetch_sub(1) == 1) advance(task, true);
  }
}

void Pool::drop_exhausted(const std::shared_ptr<Task>& task) {
  if (!task->has_pieces_left()) std::erase(tasks_, task);
}

void Pool::worker() {
  yield_to_event_loop();
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return !tasks_.empty() && working_ < limit_; });
    std::shared_ptr<Task> task = tasks_.front();
    ++working_;
    lock.unlock();
    do work(task);
    while (task->soon_has_pieces());
    lock.lock();
    --working_;
    drop_exhausted(task);
    task.reset();
    if (!tasks_.empty()) wake_.notify_one();
  }
}

}  // namespace policy_loss::cpu

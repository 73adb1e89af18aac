#include "cpu/pool.h"

#include <algorithm>
#include <chrono>
#include <new>
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

// Waits in a loop until a condition holds, but only for a moment. Returns whether the condition holds. It is
// for events that usually follow within microseconds, because a thread takes longer to sleep and wake.
template <class Condition>
bool soon(const Condition& condition) {
  constexpr auto kPatience = std::chrono::microseconds(50);
  const auto start = std::chrono::steady_clock::now();
  while (!condition()) {
    if (std::chrono::steady_clock::now() - start > kPatience) return false;
    for (int i = 0; i < 16; ++i) pause();
  }
  return true;
}

}  // namespace

// The pool's threads do not catch exceptions.
int64_t Task::next_phase() {
  try {
    return open_phase();
  } catch (const std::bad_alloc&) {
    run_out_of_memory();
    return 0;
  }
}

void Task::run(int64_t item) {
  try {
    work(item);
  } catch (const std::bad_alloc&) {
    run_out_of_memory();
  }
}

void Task::run_out_of_memory() {
  out_of_memory_.store(true, std::memory_order_relaxed);
  abort();
}

bool Task::check_abort() {
  // The flag lies in shared memory, so JavaScript may set it at any time. It is therefore loaded atomically.
  if (abort_ && __atomic_load_n(abort_, __ATOMIC_RELAXED) != 0) abort();
  return aborted();
}

bool is_aborted(Task& task) {
  return task.check_abort();
}

void Task::begin_phase(int64_t items) {
  items_ = items;
  unfinished_.store(items);
  left_.store(items);  // from here on, other threads take items
}

int64_t Task::run_items() {
  int64_t done = 0;
  // Looks before it takes, because looking does not take the cache line away from another processor.
  while (has_items()) {
    const int64_t left = left_.fetch_sub(1);
    if (left <= 0) break;
    // The phase cannot end before this item does, so items_ does not change.
    run(items_ - left);
    ++done;
  }
  return done;
}

bool Task::soon_has_items() const {
  // The other threads finish their last items and prepare the next phase.
  soon([this] { return has_items() || finished_.load(std::memory_order_relaxed); });
  return has_items();
}

Pool::Pool() : limit_(std::max(1u, std::thread::hardware_concurrency())) {}

Pool& Pool::shared() {
  static Pool* pool = new Pool;
  return *pool;
}

void Pool::set_threads(int threads) {
  std::lock_guard lock(mutex_);
  const bool is_more = threads > limit_;
  limit_ = std::max(1, threads);
  if (is_more) wake_.notify_all();
}

int Pool::threads() {
  std::lock_guard lock(mutex_);
  return limit_;
}

void Pool::submit(std::shared_ptr<Task> task) {
  if (!advance(task, false)) work(task);  // no worker thread exists, so the caller does the work
}

void Pool::run(std::shared_ptr<Task> task) {
  std::unique_lock lock(mutex_);
  ++working_;
  lock.unlock();
  try {
    advance(task, true);
  } catch (...) {
    lock.lock();
    --working_;
    wake_.notify_one();
    throw;
  }
  while (true) {
    do work(task);
    while (task->soon_has_items());
    lock.lock();
    progress_.wait(lock, [&] { return task->finished_ || task->has_items(); });
    if (task->finished_) break;
    lock.unlock();
  }
  --working_;
  if (!tasks_.empty()) wake_.notify_one();
}

bool Pool::advance(const std::shared_ptr<Task>& task, bool works) {
  const int64_t items = task->next_phase();
  if (items == 0) {
    task->done();
    std::lock_guard lock(mutex_);
    task->finished_ = true;
    progress_.notify_all();
    return true;
  }
  std::unique_lock lock(mutex_);
  // Waking another thread takes longer than a small item, so a thread that works does not wake one for an
  // item that it takes itself.
  const int64_t helpers = std::min<int64_t>(items, limit_) - (works ? 1 : 0);
  try {
    start_workers(helpers);
    if (helpers > 0 && !workers_.empty()) tasks_.push_back(task);
  } catch (const std::bad_alloc&) {
    if (!works) throw;  // else the calling thread takes all items
  }
  // Nothing may fail from here on: other threads now take items of the task, so the caller must stay and
  // wait for them.
  task->begin_phase(items);
  waiting_ = static_cast<int64_t>(tasks_.size());
  const bool has_workers = !workers_.empty();
  const int64_t wakes = helpers - lingering_;
  lock.unlock();
  for (int64_t i = 0; i < wakes; ++i) wake_.notify_one();
  progress_.notify_all();
  return has_workers;
}

// Starts worker threads when they are first needed. If the system refuses to start one, the existing threads
// do all the work.
void Pool::start_workers(int64_t wanted) {
  while (static_cast<int>(workers_.size()) < limit_ && static_cast<int64_t>(workers_.size()) < wanted) try {
      workers_.emplace_back([this] { worker(); });
      workers_.back().detach();
    } catch (const std::system_error&) {
      return;
    }
}

void Pool::work(const std::shared_ptr<Task>& task) {
  // A phase cannot end before a thread that ran items of it has told so.
  while (const int64_t done = task->run_items())
    if (task->unfinished_.fetch_sub(done) == done) advance(task, true);
}

void Pool::linger(std::unique_lock<std::mutex>* lock) {
  ++lingering_;
  lock->unlock();
  soon([this] { return waiting_.load(std::memory_order_relaxed) > 0; });
  lock->lock();
  --lingering_;
}

void Pool::worker() {
  yield_to_event_loop();
  std::unique_lock lock(mutex_);
  while (true) {
    if (tasks_.empty() && std::thread::hardware_concurrency() > 1) linger(&lock);
    wake_.wait(lock, [this] { return may_begin(); });
    std::shared_ptr<Task> task = tasks_.front();
    ++working_;
    const bool others_wait = tasks_.size() > 1;
    lock.unlock();
    if (others_wait) wake_.notify_one();
    do work(task);
    while (task->soon_has_items());
    lock.lock();
    --working_;
    if (!task->has_items()) std::erase(tasks_, task);
    waiting_ = static_cast<int64_t>(tasks_.size());
    task.reset();
    if (!tasks_.empty()) wake_.notify_one();
  }
}

}  // namespace policy_loss::cpu

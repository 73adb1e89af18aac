#include "cpu/pool.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>

#if defined(__linux__)
#include <sched.h>
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

// Returns the processor that the thread runs on, or 0 if the system does not tell.
int processor() {
#if defined(__linux__)
  return std::max(0, sched_getcpu());
#else
  return 0;
#endif
}

int processors() {
  static const int found = std::max(1u, std::thread::hardware_concurrency());
  return found;
}

// Moves the calling thread to another processor if it runs on the processor `taken`. The kernel of a virtual
// machine believes that the host has taken an idle processor away. It may therefore wake a worker on the
// processor of the thread that called the pool, where the two would take turns.
void leave(int taken) {
#if defined(__linux__)
  if (taken != sched_getcpu()) return;
  cpu_set_t allowed, others;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  others = allowed;
  CPU_CLR(taken, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0) return;
  sched_setaffinity(0, sizeof allowed, &allowed);
#else
  (void)taken;
#endif
}

// bench/simulate-cores.ts shows what these numbers are good for.
constexpr int kThreadsOfRun = 4;  // that share a counter
constexpr int kPiecesOfRun = 4;   // at least
constexpr int kWokenByCaller = 8;
constexpr int kWokenByWorker = 2;

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

void Task::run(int64_t piece) {
  try {
    work(piece);
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

void Task::make_runs(int threads) {
  most_runs_ = std::max(1, threads / kThreadsOfRun);
  if (most_runs_ == 1) return;
  several_ = std::make_unique<Run[]>(most_runs_);
  runs_ = several_.get();
}

int Task::runs_in(uint64_t phase) const {
  return static_cast<int>(std::clamp<int64_t>(pieces_[phase] / kPiecesOfRun, 1, most_runs_));
}

void Task::begin_phase(uint64_t phase, int64_t pieces) {
  pieces_[phase] = pieces;
  unfinished_.store(pieces);
  // The first run tells which phase it is, so it comes last.
  for (int run = runs_in(phase) - 1; run >= 0; --run)
    runs_[run].next.store(phase << kPhaseShift | static_cast<uint64_t>(run > 0 ? end_of(phase, run - 1) : 0));
}

bool Task::has_pieces_left() const {
  for (int run = runs_in(phase()) - 1; run >= 0; --run)
    if (has_pieces_left(run)) return true;
  return false;
}

bool Task::has_pieces_left(int run) const {
  const uint64_t next = runs_[run].next.load();
  const uint64_t phase = next >> kPhaseShift;
  return run < runs_in(phase) && piece_of(next) < end_of(phase, run);
}

int64_t Task::run_pieces() {
  int64_t done = 0;
  const int runs = runs_in(phase());
  const int first = runs == 1 ? 0 : processor() % processors() * runs / processors();
  for (int i = 0; i < runs; ++i) {
    const int run = (first + i) % runs;
    // Looks before it takes, because looking does not take the cache line away from another processor.
    while (has_pieces_left(run)) {
      const uint64_t taken = runs_[run].next.fetch_add(1);
      if (piece_of(taken) >= end_of(taken >> kPhaseShift, run)) break;
      this->run(piece_of(taken));
      ++done;
    }
  }
  return done;
}

bool Task::soon_has_pieces() const {
  // The other threads finish their last pieces and compute the weights.
  soon([this] { return has_pieces_left() || finished_.load(std::memory_order_relaxed); });
  return has_pieces_left();
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
  task->caller_ = processor();
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

bool Pool::advance(const std::shared_ptr<Task>& task, bool works) {
  const uint64_t phase = task->phase() + 1;
  const int64_t pieces = task->next_phase();
  if (pieces == 0) {
    task->done();
    std::lock_guard lock(mutex_);
    task->finished_ = true;
    progress_.notify_all();
    return true;
  }
  bool has_workers;
  int wakes;
  {
    std::lock_guard lock(mutex_);
    // Waking another thread takes longer than a small piece, so a thread that works does not wake one for a
    // piece that it takes itself.
    const int64_t helpers = std::min<int64_t>(pieces, limit_) - (works ? 1 : 0);
    if (phase == 1) task->make_runs(limit_);
    try {
      start_workers(helpers);
      if (helpers > 0) tasks_.push_back(task);
    } catch (const std::bad_alloc&) {
      if (!works) throw;  // else the calling thread takes all pieces
    }
    has_workers = !workers_.empty();
    const int invited = invite(helpers);
    to_wake_ = static_cast<int>(std::min<int64_t>(to_wake_ + helpers - invited, limit_));
    // Nothing may fail from here on: other threads now take pieces of the task, so the caller must stay and
    // wait for them.
    task->begin_phase(phase, pieces);
    wakes = take_wakes(kWokenByCaller);
  }
  for (int i = 0; i < wakes; ++i) wake_.notify_one();
  progress_.notify_all();
  return has_workers;
}

int Pool::invite(int64_t most) {
  const int before = invited_;
  const auto invited = static_cast<int>(std::clamp<int64_t>(lingering_ - before, 0, most));
  invited_ = before + invited;
  return invited;
}

bool Pool::take_invitation() {
  int invited = invited_.load(std::memory_order_relaxed);
  while (invited > 0)
    if (invited_.compare_exchange_weak(invited, invited - 1)) return true;
  return false;
}

void Pool::linger(std::unique_lock<std::mutex>* lock) {
  ++lingering_;
  lock->unlock();
  soon([this] { return take_invitation(); });
  lock->lock();
  --lingering_;
}

int Pool::take_wakes(int most) {
  const int taken = std::min(most, to_wake_);
  to_wake_ -= taken;
  return taken;
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
  // A phase cannot end before a thread that ran pieces of it has told so.
  while (const int64_t done = task->run_pieces())
    if (task->unfinished_.fetch_sub(done) == done) advance(task, true);
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
    const int wakes = take_wakes(kWokenByWorker);
    lock.unlock();
    for (int i = 0; i < wakes; ++i) wake_.notify_one();
    leave(task->caller_);
    do work(task);
    while (task->soon_has_pieces());
    lock.lock();
    --working_;
    drop_exhausted(task);
    task.reset();
    if (!tasks_.empty())
      wake_.notify_one();
    else if (processors() > 1)
      linger(&lock);
  }
}

}  // namespace policy_loss::cpu

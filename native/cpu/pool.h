// The CPU engine's threads: as many as there are cores, started once, asleep when there is nothing to do, and
// shared by all calls, so that a thousand calls at once do not become a thousand threads. What is copied to
// devices and back is copied by them too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace policy_loss::cpu {

// Work in phases of independent pieces. A phase starts when the one before it is done.
class Task {
 public:
  virtual ~Task() = default;
  // The number of pieces of the next phase, 0 when there is none. Called by one thread at a time.
  virtual int64_t next_phase() = 0;
  virtual void run(int64_t piece) = 0;
  // Called once, by the thread that finished the last piece.
  virtual void done() = 0;

 private:
  friend class Pool;
  static constexpr int kMaxPhases = 4;
  static constexpr int kPhaseShift = 48;

  // The phase in the high bits and the next piece in the low ones, so that a thread which takes a piece knows
  // of which phase it is, whatever others do meanwhile.
  std::atomic<uint64_t> next_{0};
  std::atomic<int64_t> unfinished_{0};
  int64_t pieces_[kMaxPhases + 1] = {};  // of each phase, written before the phase begins
  std::atomic<bool> finished_{false};    // written under the pool's mutex

  bool has_pieces_left() const;
  // Waits a moment for the next phase, awake; whether it has begun.
  bool soon_has_pieces() const;
};

class Pool {
 public:
  // The process's own pool. It is never destroyed: its threads end with the process.
  static Pool& shared();

  // Starts a task; returns at once.
  void submit(std::shared_ptr<Task> task);

  // Runs a task with the calling thread's help; returns when it is done.
  void run(std::shared_ptr<Task> task);

  // At most this many threads work at once, the caller of run() included.
  void set_threads(int threads);
  int threads();

 private:
  Pool();
  void worker();
  // Takes pieces of the task until none is left to take.
  void work(const std::shared_ptr<Task>& task);
  void start_workers(int64_t pieces);
  // Opens the next phase that has pieces, or ends the task. False where that leaves pieces to a pool without
  // a thread.
  bool advance(const std::shared_ptr<Task>& task);
  // Forgets the task where it waits with no piece left.
  void drop_exhausted(const std::shared_ptr<Task>& task);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable progress_;         // for the callers of run()
  std::deque<std::shared_ptr<Task>> tasks_;  // those with pieces left to take
  std::vector<std::thread> workers_;
  int limit_ = 1;
  int working_ = 0;  // threads at work on a piece, callers of run() included
};

}  // namespace policy_loss::cpu

// The threads of the CPU engine, one per core. All calls share them, so that a thousand calls do not start a
// thousand threads. They also copy data to and from CUDA devices.
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

// Work that consists of phases. The pieces of a phase are independent, and a phase starts when the previous
// one is done.
class Task {
 public:
  virtual ~Task() = default;
  // Returns the number of pieces of the next phase, or 0 after the last phase. One thread at a time calls it.
  virtual int64_t next_phase() = 0;
  virtual void run(int64_t piece) = 0;
  // Is called once, by the thread that finished the last piece.
  virtual void done() = 0;

 private:
  friend class Pool;
  static constexpr int kMaxPhases = 4;
  static constexpr int kPhaseShift = 48;

  // The phase in the high bits and the next piece in the low bits. One atomic operation thus takes a piece
  // and tells its phase.
  std::atomic<uint64_t> next_{0};
  std::atomic<int64_t> unfinished_{0};
  int64_t pieces_[kMaxPhases + 1] = {};  // per phase; written before the phase begins
  std::atomic<bool> finished_{false};    // written under the pool's mutex

  bool has_pieces_left() const;
  // Spins for a moment and returns whether the next phase has begun.
  bool soon_has_pieces() const;
};

class Pool {
 public:
  // Returns the pool of the process. It is never destroyed; its threads end with the process.
  static Pool& shared();

  // Starts a task and returns without waiting for it.
  void submit(std::shared_ptr<Task> task);

  // Runs a task on the calling thread and the pool's threads. Returns when the task is done.
  void run(std::shared_ptr<Task> task);

  // Limits the threads that work at the same time, including the callers of run().
  void set_threads(int threads);
  int threads();

 private:
  Pool();
  void worker();
  // Runs pieces of the task until none is left to take.
  void work(const std::shared_ptr<Task>& task);
  void start_workers(int64_t pieces);
  // Begins the next phase, or ends the task. Returns false if the phase has pieces but no worker thread
  // exists.
  bool advance(const std::shared_ptr<Task>& task);
  // Removes the task from the queue if no piece is left to take.
  void drop_exhausted(const std::shared_ptr<Task>& task);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable progress_;         // for the callers of run()
  std::deque<std::shared_ptr<Task>> tasks_;  // those with pieces left to take
  std::vector<std::thread> workers_;
  int limit_ = 1;
  int working_ = 0;  // threads that run pieces, including callers of run()
};

}  // namespace policy_loss::cpu

// The thread pool of the CPU engine, with one thread per core. All calls share its threads, so that a
// thousand calls do not start a thousand threads. The threads also copy data to and from CUDA devices.
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

// Work that consists of phases. A phase consists of work items, which can run on several threads at once. A
// phase starts when the previous phase is done.
class Task {
 public:
  virtual ~Task() = default;
  // Starts the next phase and returns the number of its items, or returns 0 after the last phase. No two
  // threads call it at the same time.
  int64_t next_phase();
  void run(int64_t item);
  // Called once, after the last item, by the thread that finished that item.
  virtual void done() = 0;

  // Sets the flag that stops the task: it stops soon after *flag becomes non-zero.
  void set_abort_flag(const int32_t* flag) { abort_ = flag; }
  void abort() { aborted_.store(true, std::memory_order_relaxed); }
  bool aborted() const { return aborted_.load(std::memory_order_relaxed); }
  // Returns whether the task was aborted, after looking at the flag.
  bool check_abort();
  // If memory runs out, the task is aborted, and its outputs are meaningless.
  bool out_of_memory() const { return out_of_memory_.load(std::memory_order_relaxed); }

 protected:
  // Do the work of next_phase() and run(). They may throw std::bad_alloc.
  virtual int64_t open_phase() = 0;
  virtual void work(int64_t item) = 0;

 private:
  friend class Pool;

  void run_out_of_memory();
  void begin_phase(int64_t items);
  // Takes and runs items of the current phase until none is left. Returns how many it ran.
  int64_t run_items();
  bool has_items() const { return left_.load(std::memory_order_relaxed) > 0; }
  // Spins briefly until the next phase begins. Returns whether it has, which means that work items can be
  // taken.
  bool soon_has_items() const;

  const int32_t* abort_ = nullptr;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> out_of_memory_{false};

  int64_t items_ = 0;                         // of the current phase
  alignas(64) std::atomic<int64_t> left_{0};  // items to take; 0 or less if all are taken
  std::atomic<int64_t> unfinished_{0};
  std::atomic<bool> finished_{false};  // written under the pool's mutex
};

class Pool {
 public:
  // Returns the pool that the whole process shares. It is never destroyed. Its threads end with the process.
  static Pool& shared();

  // Starts a task and returns without waiting for it. If the pool has no threads, the caller runs the task
  // instead.
  void submit(std::shared_ptr<Task> task);

  // Runs a task on the calling thread and on the pool's threads. Returns when the task is done.
  void run(std::shared_ptr<Task> task);

  // Limits the number of threads that work at the same time. Threads that call run() count as well.
  void set_threads(int threads);
  int threads();

 private:
  Pool();
  void worker();
  // Takes and runs items of the task until none is left.
  void work(const std::shared_ptr<Task>& task);
  void start_workers(int64_t wanted);
  // Begins the next phase of the task, or ends the task. Returns false if the phase has items but the pool
  // has no threads to run them. `works` tells whether the calling thread takes items of the phase itself.
  bool advance(const std::shared_ptr<Task>& task, bool works);
  // Waits in a loop for a task, but only for a moment. A worker does so before it sleeps, because calls often
  // follow each other within microseconds, and a worker that must be woken would come too late for a short
  // one.
  void linger(std::unique_lock<std::mutex>* lock);
  bool may_begin() const { return !tasks_.empty() && working_ < limit_; }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable progress_;         // for the callers of run()
  std::deque<std::shared_ptr<Task>> tasks_;  // those with items left to take
  std::atomic<int64_t> waiting_{0};          // the size of tasks_, for workers that linger
  std::vector<std::thread> workers_;
  int limit_ = 1;
  int working_ = 0;    // threads that run items, including callers of run()
  int lingering_ = 0;  // workers in linger()
};

}  // namespace policy_loss::cpu

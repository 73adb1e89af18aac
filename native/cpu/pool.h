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

// Work that consists of phases. A phase consists of pieces, which can run on several threads at once. A phase
// starts when the previous phase is done.
class Task {
 public:
  static constexpr int kMaxPhases = 128;

  virtual ~Task() = default;
  // Starts the next phase and returns the number of its pieces, or returns 0 after the last phase. There are
  // at most kMaxPhases phases. No two threads call it at the same time.
  int64_t next_phase();
  void run(int64_t piece);
  // Called once, after the last piece, by the thread that finished that piece.
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
  virtual void work(int64_t piece) = 0;

 private:
  friend class Pool;
  static constexpr int kPhaseShift = 48;

  // The pieces of a phase are divided into runs of neighbours, each with a counter in a cache line of its
  // own. The threads of a processor begin with the same run in each phase and each call. So few threads share
  // a counter, and a processor mostly reads and writes the same part of the caller's memory.
  struct alignas(64) Run {
    // The number of the phase in the high bits, and the index of the next piece in the low bits. So one
    // atomic operation takes a piece and tells which phase it belongs to.
    std::atomic<uint64_t> next{0};
  };

  void run_out_of_memory();
  // Makes as many runs as are useful for a number of threads. Must be called before the first phase.
  void make_runs(int threads);
  void begin_phase(uint64_t phase, int64_t pieces);
  uint64_t phase() const { return runs_[0].next.load() >> kPhaseShift; }
  // Returns the number of runs that a phase has; fewer if it has few pieces.
  int runs_in(uint64_t phase) const;
  // Returns the index of the piece after a run's last one.
  int64_t end_of(uint64_t phase, int run) const { return pieces_[phase] * (run + 1) / runs_in(phase); }
  static int64_t piece_of(uint64_t next) { return static_cast<int64_t>(next & ((1ull << kPhaseShift) - 1)); }
  // Runs pieces of the current phase until none is left to take. Returns how many it ran.
  int64_t run_pieces();
  bool has_pieces_left() const;
  bool has_pieces_left(int run) const;
  // Waits for a moment in a loop. Returns whether the next phase has begun, so that there are pieces to take.
  bool soon_has_pieces() const;

  const int32_t* abort_ = nullptr;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> out_of_memory_{false};

  Run only_;
  std::unique_ptr<Run[]> several_;
  Run* runs_ = &only_;
  int most_runs_ = 1;
  alignas(64) std::atomic<int64_t> unfinished_{0};
  int64_t pieces_[kMaxPhases + 1] = {};  // per phase; written before the phase begins
  int caller_ = -1;                      // the processor of the caller of Pool::run(), if there is one
  std::atomic<bool> finished_{false};    // written under the pool's mutex
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
  // Takes and runs pieces of the task until none is left.
  void work(const std::shared_ptr<Task>& task);
  void start_workers(int64_t pieces);
  // Returns how many threads the calling thread must wake, at most `most`. The mutex must be locked, but not
  // while it wakes them.
  int take_wakes(int most);
  // Invites at most `most` of the workers that linger, and returns how many. The mutex must be locked.
  int invite(int64_t most);
  // Returns whether the calling thread was invited.
  bool take_invitation();
  // Waits in a loop for an invitation, but only for a moment. A worker does so before it sleeps, because
  // calls often follow each other within microseconds. A worker that must be woken would come too late for a
  // call that takes 100 microseconds.
  void linger(std::unique_lock<std::mutex>* lock);
  // Begins the next phase of the task, or ends the task. Returns false if the phase has pieces but the pool
  // has no threads to run them. `works` tells whether the calling thread takes pieces of the phase itself.
  bool advance(const std::shared_ptr<Task>& task, bool works);
  // Removes the task from the queue if all pieces of its current phase have been taken.
  void drop_exhausted(const std::shared_ptr<Task>& task);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable progress_;         // for the callers of run()
  std::deque<std::shared_ptr<Task>> tasks_;  // those with pieces left to take
  std::vector<std::thread> workers_;
  int limit_ = 1;
  int working_ = 0;              // threads that run pieces, including callers of run()
  int to_wake_ = 0;              // threads that others are to wake before they begin to work
  int lingering_ = 0;            // workers in linger()
  std::atomic<int> invited_{0};  // lingering workers that are to begin; can count some that have just left
};

}  // namespace policy_loss::cpu

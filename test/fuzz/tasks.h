// Runs tasks of the CPU engine and checks their results.
#pragma once

#include <cmath>
#include <memory>
#include <string>

#include "cpu/engine.h"
#include "test/fuzz/batch.h"

namespace fuzz {

extern std::string subject;  // what is computed, for the printed report

// If `holds` is false, prints `what`, which says what should hold, and aborts the process.
void require(bool holds, const char* what);

// Where a task runs: on the calling thread, or on the thread pool with one thread or two.
enum Where { kHere, kOneThread, kTwoThreads };

template <class Task>
void perform(Where where, const std::shared_ptr<Task>& task) {
  if (where == kHere) {
    cpu::run_here(*task);
    return;
  }
  cpu::Pool::shared().set_threads(where == kOneThread ? 1 : 2);
  cpu::Pool::shared().run(task);
}

// While it exists, only so many further allocations succeed, on any thread. new[] is not limited.
class Scarcity {
 public:
  explicit Scarcity(int64_t allocations);
  ~Scarcity();
  Scarcity(const Scarcity&) = delete;
  Scarcity& operator=(const Scarcity&) = delete;
};

// Returns an array for a result. The array is filled with a number that is different for each `where`. So if
// a task leaves an element unwritten, the results differ.
template <class T>
Array<T> to_be_written(int64_t size, Where where, int shift) {
  Array<T> array(size, shift);
  for (T& x : array) x = static_cast<T>(40 + where);
  return array;
}

template <class T>
bool all_finite(const Array<T>& numbers) {
  bool finite = true;
  for (const T& x : numbers) finite = finite && std::isfinite(x);
  return finite;
}

}  // namespace fuzz

// Runs the CPU engine's tasks and checks their results.
#pragma once

#include <cmath>
#include <memory>
#include <string>

#include "cpu/engine.h"
#include "test/fuzz/batch.h"

namespace fuzz {

extern std::string subject;  // what is computed, for the report

// Prints a report and aborts the process if `holds` is false. `what` says what should hold.
void require(bool holds, const char* what);

// How a task is run: on the calling thread (kHere), there in memory that another evaluation has used
// (kReused), or on the pool with one thread or two.
enum Where { kHere, kReused, kOneThread, kTwoThreads };

template <class Task>
void perform(Where where, const std::shared_ptr<Task>& task) {
  if (where == kHere || where == kReused) {
    cpu::run_here(*task);
    return;
  }
  cpu::Pool::shared().set_threads(where == kOneThread ? 1 : 2);
  cpu::Pool::shared().run(task);
}

// Returns an array for a result. It is filled with a number that depends on `where`, so that results differ
// if a task does not write some elements.
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

// Tests the CPU engine's thread pool in a process that cannot create threads. The calling thread must then do
// the tasks itself. As soon as threads can be created, the pool must use them.
//
// This is a separate program because it replaces pthread_create(). Sanitizers replace that function too, so
// the test cannot run under them.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>

#include "cpu/pool.h"

namespace {

std::atomic<bool> refusing = true;
std::atomic<int> refused = 0;

class Count : public policy_loss::cpu::Task {
 public:
  explicit Count(int64_t pieces) : pieces_(pieces) {}
  int64_t open_phase() override { return std::exchange(pieces_, 0); }
  void work(int64_t) override { ++ran; }
  void done() override { is_done = true; }

  std::atomic<int64_t> ran = 0;
  std::atomic<bool> is_done = false;

 private:
  int64_t pieces_;
};

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  ++failures;
  std::printf("does not hold: %s\n", what);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*start)(void*),
                                                                     void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (!refusing) return create(thread, attributes, start, argument);
  ++refused;
  return EAGAIN;
}

int main() {
  using policy_loss::cpu::Pool;
  Pool& pool = Pool::shared();
  pool.set_threads(4);

  const auto submitted = std::make_shared<Count>(10);
  pool.submit(submitted);
  expect(refused > 0, "threads are refused");
  expect(submitted->ran == 10 && submitted->is_done, "the thread that submits a task does it");

  const auto run = std::make_shared<Count>(10);
  pool.run(run);
  expect(run->ran == 10 && run->is_done, "the thread that runs a task does it");

  refusing = false;
  const auto later = std::make_shared<Count>(1000);
  pool.submit(later);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!later->is_done && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  expect(later->ran == 1000 && later->is_done, "new threads do a task");

  std::printf("  %d passing: no_threads_test\n", failures == 0 ? 1 : 0);
  if (failures > 0) std::printf("  1 failing: no_threads_test\n");
  return failures == 0 ? 0 : 1;
}

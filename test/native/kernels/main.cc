// Runs the CUDA kernels on the emulated device and compares their results with the CPU engine. Also tests
// that the emulation finds kernels that are broken on purpose.
//
//   emulation_test [NAME]     runs all pieces of the test, or those whose names begin with NAME
//
// The emulation runs one thread at a time. So the pieces are divided among processes, one for each core.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

#include "test/native/kernels/test.h"

namespace kernels_test {
namespace {

// The state that all processes share, in shared memory.
struct Shared {
  std::atomic<size_t> next_piece = 0;
  std::atomic<int> checks = 0, failures = 0;
};

Shared* make_shared_state() {
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("emulation_test: mmap");
    std::exit(1);
  }
  return new (memory) Shared;
}

Shared& shared = *make_shared_state();

// Takes pieces from the list, which all processes share, and runs them until none is left. If
// POLICY_LOSS_TEST_TIMES is set, prints how long each piece takes.
void run_pieces(const std::vector<Piece>& pieces) {
  const bool times = std::getenv("POLICY_LOSS_TEST_TIMES") != nullptr;
  for (size_t i; (i = shared.next_piece++) < pieces.size();) {
    const auto begin = std::chrono::steady_clock::now();
    pieces[i].run();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (times) std::printf("%6.2f s  %s\n", seconds.count(), pieces[i].name.c_str());
  }
}

// Runs the pieces in `count` child processes. Returns the number of processes that ended with exit status 0.
unsigned run_in_processes(unsigned count, const std::vector<Piece>& pieces) {
  std::fflush(stdout);
  for (unsigned i = 0; i < count; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      run_pieces(pieces);
      std::exit(0);  // not _exit(), so that a sanitizer looks for leaks
    }
    if (child < 0) {
      std::perror("emulation_test: fork");
      std::exit(1);
    }
  }
  unsigned orderly = 0;
  for (int status; wait(&status) > 0;) orderly += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : 0;
  return orderly;
}

}  // namespace

void expect(bool holds, const std::string& what) {
  ++shared.checks;
  if (holds) return;
  if (++shared.failures <= 20) std::printf("does not hold: %s\n", what.c_str());
}

}  // namespace kernels_test

int main(int argc, char** argv) {
  using namespace kernels_test;
  std::vector<Piece> pieces;
  // The pieces that take longest come first, so that no process is still busy when the others have finished.
  for (const auto& some : {fault_pieces(), evaluation_pieces(), advantage_pieces(), kl_value_pieces()})
    for (const Piece& piece : some)
      if (argc < 2 || piece.name.starts_with(argv[1])) pieces.push_back(piece);
  const unsigned processes = std::max(1u, std::thread::hardware_concurrency());
  const bool orderly = run_in_processes(processes, pieces) == processes;
  if (!orderly) std::printf("a process of the test ended early\n");
  const bool passed = orderly && shared.failures == 0 && shared.checks > 0;
  std::printf("%d checks, %d failures\n  1 %s: emulation_test\n", shared.checks.load(),
              shared.failures.load(), passed ? "passing" : "failing");
  return passed ? 0 : 1;
}

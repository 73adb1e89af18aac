// Runs the CUDA kernels on the emulated device and compares their results with the CPU engine. Also tests
// that the emulation finds kernels that are broken on purpose.
//
//   emulation_test [NAME] [-WORD...]
//
// Runs all pieces of the test, or those whose names begin with NAME. Leaves out pieces with one of the WORDs
// in their names.
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
#include <string>
#include <thread>
#include <vector>

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

void run_piece(const Piece& piece) {
  const bool times = std::getenv("POLICY_LOSS_TEST_TIMES") != nullptr;
  const auto begin = std::chrono::steady_clock::now();
  piece.run();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (times) std::printf("%6.2f s  %s\n", seconds.count(), piece.name.c_str());
}

// Takes pieces from the list, which all processes share, and runs them until none is left. If
// POLICY_LOSS_TEST_TIMES is set, prints how long each piece takes.
void run_pieces(const std::vector<Piece>& pieces) {
  for (size_t i; (i = shared.next_piece++) < pieces.size();)
    if (!pieces[i].needs_fresh_process) run_piece(pieces[i]);
}

template <class Body>
void run_in_process(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    std::exit(0);  // not _exit(), so that a sanitizer looks for leaks
  }
  if (child < 0) {
    std::perror("emulation_test: fork");
    std::exit(1);
  }
}

// Runs the pieces in `count` child processes, and each piece that needs a fresh process in one of its own.
// Returns whether all processes ended with exit status 0.
bool run_in_processes(unsigned count, const std::vector<Piece>& pieces) {
  std::fflush(stdout);
  for (const Piece& piece : pieces)
    if (piece.needs_fresh_process) run_in_process([&] { run_piece(piece); });
  for (unsigned i = 0; i < count; ++i) run_in_process([&] { run_pieces(pieces); });
  bool orderly = true;
  for (int status; wait(&status) > 0;) orderly = orderly && WIFEXITED(status) && WEXITSTATUS(status) == 0;
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
  std::string begin;
  std::vector<std::string> left_out;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with('-'))
      left_out.push_back(word.substr(1));
    else
      begin = word;
  }
  const auto is_wanted = [&](const std::string& name) {
    return name.starts_with(begin) && std::none_of(left_out.begin(), left_out.end(), [&](const auto& word) {
             return name.find(word) != std::string::npos;
           });
  };
  std::vector<Piece> pieces;
  // The pieces that take longest come first, so that no process is still busy when the others have finished.
  for (const auto& some : {failure_pieces(), host_pieces(), fault_pieces(), evaluation_pieces(),
                           advantage_pieces(), kl_value_pieces(), share_pieces()})
    for (const Piece& piece : some)
      if (is_wanted(piece.name)) pieces.push_back(piece);
  const unsigned processes = std::max(1u, std::thread::hardware_concurrency());
  const bool orderly = run_in_processes(processes, pieces);
  if (!orderly) std::printf("a process of the test ended early\n");
  const bool passed = orderly && shared.failures == 0 && shared.checks > 0;
  std::printf("%d checks, %d failures\n  1 %s: emulation_test\n", shared.checks.load(),
              shared.failures.load(), passed ? "passing" : "failing");
  return passed ? 0 : 1;
}

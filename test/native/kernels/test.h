// Declares the pieces of the kernels' tests, and the function that checks their results.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace kernels_test {

// Counts a check. If `holds` is false, also counts a failure, and prints `what` for the first failures.
void expect(bool holds, const std::string& what);

// A part of the test that does not depend on the others, because pieces run in several processes at once.
struct Piece {
  std::string name;
  std::function<void()> run;
  bool needs_fresh_process = false;  // whether no other piece may have used the device before
};

std::vector<Piece> evaluation_pieces();
std::vector<Piece> kl_value_pieces();
std::vector<Piece> advantage_pieces();
std::vector<Piece> fault_pieces();
std::vector<Piece> failure_pieces();
std::vector<Piece> host_pieces();
std::vector<Piece> share_pieces();

// Returns the result of body(). While it runs, the emulation shuffles blocks, threads and streams with this
// seed. With an odd seed, the device also has compute capability 8.0 instead of 9.0, so that kernels use
// other instructions to copy columns (feed.cuh).
template <class Body>
auto shuffled(int seed, Body body) {
  setenv("POLICY_LOSS_EMULATION_SHUFFLE", std::to_string(seed).c_str(), 1);
  if (seed % 2 != 0) setenv("POLICY_LOSS_EMULATION_CAPABILITY", "80", 1);
  auto result = body();
  unsetenv("POLICY_LOSS_EMULATION_SHUFFLE");
  unsetenv("POLICY_LOSS_EMULATION_CAPABILITY");
  return result;
}

}  // namespace kernels_test

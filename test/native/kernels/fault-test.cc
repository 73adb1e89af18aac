// Tests errors, aborts and simultaneous calls of the CUDA engine. Also tests that the emulation finds the
// mistakes of kernels that are broken on purpose.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cpu/advantages.h"
#include "test/native/emulation/traffic.h"
#include "test/native/kernels/advantages.h"
#include "test/native/kernels/broken-kernels.h"
#include "test/native/kernels/test.h"

namespace kernels_test {
namespace {

const Shape& long_rows() {
  return shape_named("rows longer than a chunk");
}

Function ppo(bool entropy) {
  return make_function(0, 0, Aggregation::kTokenMean, kNone, entropy);
}

// Calls body() while each emulated device has only this many bytes of memory. `bytes` is a decimal number.
template <class Body>
void with_memory(const char* bytes, Body body) {
  setenv("POLICY_LOSS_EMULATION_MEMORY", bytes, 1);
  body();
  unsetenv("POLICY_LOSS_EMULATION_MEMORY");
}

void test_evaluation_errors() {
  const auto batch = draw_batch(long_rows(), DType::kFloat32, false, 3);
  const Function function = ppo(false);
  cuda::Result result;
  cuda::Call call;
  call.result = &result;
  cuda::Problem problem;
  const PreparedFunction prepared(function);
  const cuda::Request request = cuda::request_of(prepared, {}, {}, true);
  const auto status_on = [&](int device) {
    return cuda::evaluate_host(device, batch->view, request, call, &problem);
  };
  expect(cuda::count_devices(&problem).count == 1, "one emulated device");
  for (const int device : {-1, 1})
    expect(status_on(device) == cuda::Status::kNoDevice, "a device that does not exist");
  with_memory("100000", [&] {
    expect(status_on(0) == cuda::Status::kOutOfMemory, "an evaluation runs out of memory");
    cuda::Resident* resident = nullptr;
    expect(cuda::upload(0, batch->view, {}, {}, nullptr, &resident, &problem) == cuda::Status::kOutOfMemory,
           "an upload runs out of memory");
  });
  const int32_t aborted = 1;
  call.abort = &aborted;
  expect(status_on(0) == cuda::Status::kAborted, "an abort");
  compare(on_cpu(function, *batch, {}), on_device(function, *batch, {}, nullptr, "after errors"), *batch,
          "after errors");
}

void test_advantage_errors() {
  const Inputs inputs = draw_inputs(long_rows(), DType::kFloat32, 3);
  const cuda::FoundInputs found(inputs.batch);
  const auto gae = std::find_if(advantages().begin(), advantages().end(),
                                [](const AdvantageInfo& info) { return info.name == "ppo"; });
  const AdvantageFunction function{gae->shape, gae->index, {1.0, 0.95}};
  NonFiniteValue not_finite;
  cuda::AdvantageCall call;
  call.not_finite = &not_finite;
  cuda::Problem problem;
  const auto status = [&] {
    return cuda::advantages_host(0, found.inputs(), cuda::request_of(function, 0), call, &problem);
  };
  with_memory("200000",
              [&] { expect(status() == cuda::Status::kOutOfMemory, "advantages run out of memory"); });
  const int32_t aborted = 1;
  call.abort = &aborted;
  expect(status() == cuda::Status::kAborted, "an abort of advantages");
  const std::vector<float> expected = advantages_on_cpu(function, inputs).advantages;
  const std::vector<float> after =
      advantages_on_device(function, inputs, nullptr, "advantages after errors").advantages;
  bool all = true;
  for (size_t i = 0; i < expected.size(); ++i) all = all && close(after[i], expected[i], 0.3);
  expect(all, "advantages after errors");
}

void test_calls_at_once() {
  const auto batch = draw_batch(long_rows(), DType::kFloat32, false, 3);
  const Function function = ppo(false);
  std::vector<std::thread> threads;
  std::vector<Outcome> outcomes(4);
  for (Outcome& outcome : outcomes)
    threads.emplace_back([&] { outcome = on_device(function, *batch, {}, nullptr, "at once"); });
  for (std::thread& thread : threads) thread.join();
  const Outcome expected = on_cpu(function, *batch, {});
  for (const Outcome& outcome : outcomes) {
    compare(expected, outcome, *batch, "at once");
    expect(outcome.same_bits(outcomes[0]), "calls at once do not disturb each other");
  }
}

// share_among_threads() sets abort_flag after pieces_until_abort pieces, because a caller may abort a call at
// any time.
int32_t abort_flag = 0;
std::atomic<int64_t> pieces_until_abort = 0;

void share_among_threads(int64_t pieces, void (*piece)(void*, int64_t), void* what) {
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k)
    threads.emplace_back([&] {
      for (int64_t i; (i = next++) < pieces;) {
        piece(what, i);
        if (--pieces_until_abort == 0) __atomic_store_n(&abort_flag, 1, __ATOMIC_RELAXED);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

void do_alone(int64_t pieces, void (*piece)(void*, int64_t), void* what) {
  for (int64_t i = 0; i < pieces; ++i) piece(what, i);
}

// Tests copies that need more staging buffers than there are (native/cuda/staging.h), so that buffers are
// reused. Copies in both directions, with several threads.
void test_staging() {
  cuda::share_work_by(share_among_threads);
  const auto batch = draw_batch({"four million tokens", 4, 1000003, {}}, DType::kFloat32, false, 6);
  const Function function = ppo(true);
  const PreparedFunction prepared(function);
  const Outcome expected = on_cpu(function, *batch, {});
  // Aborts calls while they copy to the device, and while they copy back to the host.
  for (const int64_t pieces : {10, 50, 75}) {
    pieces_until_abort = pieces;
    abort_flag = 0;
    cuda::Result result;
    cuda::Call call;
    Outcome outcome = empty_outcome(function, *batch);
    call.result = &result;
    call.grad = outcome.grad.data();
    call.abort = &abort_flag;
    cuda::Problem problem;
    expect(cuda::evaluate_host(0, batch->view, cuda::request_of(prepared, {}, {}, true), call, &problem) ==
               cuda::Status::kAborted,
           "an abort after " + std::to_string(pieces) + " pieces");
  }
  const std::string what = "four million tokens from the host and back, after aborts";
  compare(expected, on_device(function, *batch, {}, nullptr, what), *batch, what);
  cuda::share_work_by(do_alone);
}

constexpr bool is_sanitized() {
#if ADDRESS_SANITIZER
  return true;
#else
  return false;
#endif
}

// Returns whether a child process that calls run() ends early.
bool ends_process(std::string (*run)()) {
  const pid_t child = fork();
  if (child == 0) {
    ::close(STDERR_FILENO);  // the sanitizer's report
    run();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

void test_broken_kernels() {
  for (const auto& some : {broken_kernels(), broken_copies(), planted_faults()})
    for (const BrokenKernel& kernel : some) {
      if (is_sanitized() && kernel.ends_sanitized_process) {
        expect(ends_process(kernel.run), std::string(kernel.name) + ": AddressSanitizer ends the process");
        continue;
      }
      const std::string found = kernel.run();
      expect(kernel.expected[0] == '\0' ? found.empty() : found.find(kernel.expected) != std::string::npos,
             std::string(kernel.name) + ": the emulation reports " + (found.empty() ? "nothing" : found));
    }
}

// Returns the result of body(), while `residents` blocks of a grid run at the same time and see each other's
// stores late.
template <class Body>
auto with_residents(int residents, Body body) {
  setenv("POLICY_LOSS_EMULATION_RESIDENT", std::to_string(residents).c_str(), 1);
  auto result = body();
  unsetenv("POLICY_LOSS_EMULATION_RESIDENT");
  return result;
}

constexpr int kSeeds = 8;

// Expects that call(0) has the same bits if blocks run one after another and see each other's stores late,
// and if several blocks run at the same time. call(1) has other inputs of the same size. It comes in between,
// so that the memory of the device does not contain what call(0) has stored there before.
template <class Call>
void expect_same_bits(const std::string& what, Call call) {
  const auto expected = call(0);
  call(1);
  expect(expected.same_bits(with_residents(1, [&] { return call(0); })),
         what + ": the same bits with late stores");
  for (int seed = 0; seed < kSeeds; ++seed) {
    call(1);
    const auto again = with_residents(2 + seed % 3, [&] { return shuffled(seed, [&] { return call(0); }); });
    expect(expected.same_bits(again),
           what + ": the same bits with blocks at the same time, seed " + std::to_string(seed));
  }
}

// Tests that kernels need no more order among blocks than CUDA promises: the kernels of every policy loss and
// of every advantage function. The shape must have enough tokens for several blocks.
void test_interleaved_blocks(const Shape& shape) {
  const std::unique_ptr<Batch> batches[] = {draw_batch(shape, DType::kFloat32, false, 3),
                                            draw_batch(shape, DType::kFloat32, false, 4)};
  const Inputs inputs[] = {draw_inputs(shape, DType::kFloat32, 3), draw_inputs(shape, DType::kFloat32, 4)};
  for (int loss = 0; loss < static_cast<int>(losses().size()); ++loss) {
    const Function function = make_function(loss, loss, static_cast<Aggregation>(loss % 4), loss % 5, true);
    const std::string what = losses()[loss].name + ", " + shape.name;
    const int64_t before = emulation::block_switches();
    expect_same_bits(what,
                     [&](int which) { return on_device(function, *batches[which], {}, nullptr, what); });
    expect(is_sanitized() || emulation::block_switches() > before, what + ": blocks take turns");
  }
  for (const AdvantageInfo& info : advantages()) {
    AdvantageFunction function{info.shape, info.index, {}};
    for (const OptionInfo& option : info.options) function.options.push_back(option.choices ? 0 : 0.5);
    const std::string what = info.name + ", " + shape.name;
    expect_same_bits(what,
                     [&](int which) { return advantages_on_device(function, inputs[which], nullptr, what); });
  }
}

}  // namespace

std::vector<Piece> fault_pieces() {
  std::vector<Piece> pieces = {{"staging", test_staging},
                               {"errors of evaluations", test_evaluation_errors},
                               {"errors of advantages", test_advantage_errors},
                               {"calls at once", test_calls_at_once},
                               {"broken kernels", test_broken_kernels}};
  for (const char* shape : {"packed", "rows of whole chunks", "rows of very many chunks"})
    pieces.push_back({std::string("interleaved blocks, ") + shape,
                      [=] { test_interleaved_blocks(shape_named(shape)); }, true});
  return pieces;
}

}  // namespace kernels_test

// Makes every function of the CUDA runtime fail that a call uses, one after another. The call must then fail
// with a message that names the function or the kernel, lose no memory, and leave the device ready for the
// next call.
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "faults.h"
#include "test/native/kernels/advantages.h"
#include "test/native/kernels/evaluations.h"
#include "test/native/kernels/test.h"

namespace kernels_test {
namespace {

using emulation::Failing;

constexpr Coefficients kFailureCoefficients{0.5, 0.1, -0.02};

// What a call of the engine returns.
struct Answer {
  cuda::Status status = cuda::Status::kOk;
  std::string message;
  std::vector<double> numbers;

  template <class T>
  void add(const std::vector<T>& some) {
    numbers.insert(numbers.end(), some.begin(), some.end());
  }
  bool is(const Answer& other) const { return status == other.status && same_bits(numbers, other.numbers); }
};
using EngineCall = std::function<Answer()>;

struct NamedCall {
  std::string name;
  EngineCall call;
};

const Batch& small_batch() {
  static const Batch& batch =
      *draw_batch(shape_named("rows of whole chunks"), DType::kFloat32, false, 3).release();
  return batch;
}

const Inputs& small_inputs() {
  static const Shape shape{"short packed rows", 8, 40, {0, 5, 1, 33, 0, 17, 40, 2}};
  static const Inputs& inputs = *new Inputs(draw_inputs(shape, DType::kFloat32, 3));
  return inputs;
}

Answer evaluate(const Function& function, const cuda::Resident* resident,
                const AdvantageFunction* advantage = nullptr) {
  const Batch& batch = advantage ? *small_inputs().data : small_batch();
  Answer answer;
  Outcome outcome = empty_outcome(function, batch);
  cuda::Result result;
  cuda::Call call = call_into(&outcome, &result);
  cuda::Problem problem;
  const PreparedFunction prepared(function);
  const cuda::Request request = cuda::request_of(prepared, kFailureCoefficients, {}, true);
  NonFiniteValue not_finite;
  cuda::AdvantageRequest first;
  if (advantage) {
    first = cuda::request_of(*advantage, kSeed);
    call.advantage = &first;
    call.advantage_call.not_finite = &not_finite;
  }
  answer.status = resident ? cuda::evaluate(resident, request, call, &problem)
                           : cuda::evaluate_host(0, batch.view, request, call, &problem);
  answer.message = problem.message;
  if (answer.status != cuda::Status::kOk) return answer;
  cuda::finish_result(prepared, request, result, {.values = outcome.values.data()});
  answer.add(outcome.values);
  answer.add(outcome.grad);
  answer.add(outcome.grad_entropy);
  return answer;
}

Answer advantages_of(const AdvantageFunction& function, const cuda::Resident* resident) {
  const Inputs& inputs = small_inputs();
  Answer answer;
  Advantages result(function, inputs);
  const cuda::FoundInputs found(inputs.batch);
  const cuda::AdvantageCall call = call_into(&result);
  cuda::Problem problem;
  const cuda::AdvantageRequest request = cuda::request_of(function, kSeed);
  answer.status = resident ? cuda::advantages(resident, request, call, &problem)
                           : cuda::advantages_host(0, found.inputs(), request, call, &problem);
  answer.message = problem.message;
  answer.add(result.advantages);
  answer.add(result.returns);
  answer.add(result.scores);
  answer.add(result.repeats);
  return answer;
}

Answer kl_values(int estimator, bool with_base) {
  const Batch& batch = small_batch();
  Answer answer;
  std::vector<float> base(batch.tokens, 0.5f), out(batch.tokens, 42.0f);
  double mean = 0;
  const cuda::KlCall call = kl_call_into(out.data(), &mean, estimator, with_base ? base.data() : nullptr);
  cuda::Problem problem;
  answer.status = cuda::kl_host(0, batch.view, call, &problem);
  answer.message = problem.message;
  answer.add(out);
  answer.numbers.push_back(mean);
  return answer;
}

// Uploads a batch, computes advantages and then a loss from them, and releases the batch.
Answer with_resident_batch(const Function& function, const AdvantageFunction& advantage) {
  const cuda::FoundInputs found(small_inputs().batch);
  cuda::Resident* resident = nullptr;
  cuda::Problem problem;
  Answer answer;
  answer.status =
      cuda::upload(0, small_inputs().data->view, found.inputs(), {}, nullptr, &resident, &problem);
  answer.message = problem.message;
  if (answer.status != cuda::Status::kOk) return answer;
  answer = evaluate(function, resident, &advantage);
  cuda::release(resident);
  return answer;
}

AdvantageFunction with_defaults(const AdvantageInfo& info) {
  AdvantageFunction function{info.shape, info.index, {}};
  for (const OptionInfo& option : info.options) function.options.push_back(option.choices ? 0 : 0.5);
  return function;
}

Function loss_with(int loss, int kl, bool entropy) {
  return make_function(loss, loss + 1, static_cast<Aggregation>((loss + 1) % 4), kl, entropy);
}

std::vector<NamedCall> loss_calls() {
  std::vector<NamedCall> calls;
  const int estimators = static_cast<int>(kl_estimators().size());
  for (int loss = kNone; loss < static_cast<int>(losses().size()); ++loss) {
    const Function function = loss_with(loss, (loss + 1) % (estimators + 1) - 1, loss % 2 != 0);
    calls.push_back({loss == kNone ? "no policy loss" : losses()[loss].name,
                     [function] { return evaluate(function, nullptr); }});
  }
  return calls;
}

std::vector<NamedCall> other_calls() {
  std::vector<NamedCall> calls;
  for (const bool with_base : {false, true})
    calls.push_back(
        {with_base ? "KL values with a base" : "KL values", [with_base] { return kl_values(0, with_base); }});
  for (const AdvantageInfo& info : advantages()) {
    const AdvantageFunction function = with_defaults(info);
    calls.push_back({"advantages of " + info.name, [function] { return advantages_of(function, nullptr); }});
    calls.push_back({"a resident batch with advantages of " + info.name,
                     [function] { return with_resident_batch(loss_with(0, 0, true), function); }});
  }
  return calls;
}

int64_t calls_of_runtime(const EngineCall& call) {
  const int64_t before = emulation::runtime_calls();
  call();
  return emulation::runtime_calls() - before;
}

// Returns whether a message names the function that failed. A function that launches a kernel is named by its
// kernel, and all waiting for an event by the function that asks for it.
bool names(const std::string& message, const std::string& function) {
  if (function == "cudaEventSynchronize") return names(message, "cudaEventQuery");
  const bool launches = function == "cudaLaunchKernel" || function == "cudaFuncSetAttribute";
  return message.find(launches ? "_kernel failed: " : function + " failed: ") != std::string::npos;
}

// Expects what must hold for a call in which `function` failed, without any influence on other functions.
void expect_orderly_failure(const Answer& found, const std::string& function, const Answer& expected,
                            const std::string& what) {
  // The engine can do without the success of these.
  static const std::set<std::string> dispensable = {
      "cudaFreeAsync",         "cudaSetDevice", "cudaStreamSynchronize", "cudaDriverGetVersion",
      "cudaRuntimeGetVersion", "cudaFree",      "cudaGetDevice"};
  expect(!function.empty(), what + ": a function fails");
  if (found.status == cuda::Status::kOk)
    expect(dispensable.contains(function) && found.is(expected), what + ": the results are right");
  else
    expect(names(found.message, function), what + ": the message is " + found.message);
  expect(cudaGetLastError() == cudaSuccess, what + ": the error is cleared");
}

void test_failures_of(const NamedCall& named) {
  const EngineCall& call = named.call;
  call();  // lets the scratch memory grow
  const Answer expected = call();
  expect(expected.status == cuda::Status::kOk, named.name + ": " + expected.message);
  const int64_t count = calls_of_runtime(call);
  const emulation::Holdings before = emulation::holdings();
  for (int64_t n = 1; n <= count; ++n) {
    emulation::fail_call(n, Failing::kOnce);
    const Answer found = call();
    const std::string function = emulation::failed_call();
    emulation::fail_call(0, Failing::kOnce);
    const std::string what = named.name + ", failure " + std::to_string(n) + " in " + function;
    expect_orderly_failure(found, function, expected, what);
    expect(call().is(expected), what + ": the next call is right");
    expect(emulation::holdings() == before, what + ": no memory is lost");
  }
}

// As test_failures_of(), while streams also run early. A stream may then free memory before another one has
// copied there. The number of calls of the runtime varies, because the device is not always ready.
void test_early_failures_of(const NamedCall& named) {
  const Answer expected = named.call();
  const int64_t count = calls_of_runtime(named.call);
  for (int64_t n = 1; n <= count; ++n) {
    emulation::fail_call(n, Failing::kOnce);
    const Answer found = shuffled(static_cast<int>(n), named.call);
    const std::string function = emulation::failed_call();
    emulation::fail_call(0, Failing::kOnce);
    const std::string what = named.name + ", early, failure " + std::to_string(n) + " in " + function;
    if (!function.empty()) expect_orderly_failure(found, function, expected, what);
    expect(named.call().is(expected), what + ": the next call is right");
  }
}

// Runs body() in a child process, and returns its result, which must be less than 100.
int in_child(const std::function<int()>& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int result = body();
    std::fflush(stdout);
    _exit(result);
  }
  int status = 0;
  waitpid(child, &status, 0);
  expect(child > 0 && WIFEXITED(status), "a child process ends in order");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

// Tests an error in a kernel, after which the device cannot be used.
void test_sticky_failures() {
  const EngineCall call = [] { return evaluate(loss_with(0, 0, true), nullptr); };
  call();
  const int64_t count = calls_of_runtime(call);
  int naming = 0;  // how many failures name all kernels
  for (int64_t n = 1; n <= count; ++n)
    naming += in_child([&] {
      emulation::fail_call(n, Failing::kSticky);
      const Answer found = call();
      const std::string what = "a sticky failure " + std::to_string(n) + " in " + emulation::failed_call();
      // The last functions of a call free memory, when the results are already there.
      if (found.status != cuda::Status::kOk) {
        expect(found.status == cuda::Status::kFailed, what + ": the status");
        expect(found.message.find("illegal memory access") != std::string::npos, what + ": " + found.message);
        expect(found.message.find("restarted") != std::string::npos || n <= 2, what + ": " + found.message);
      }
      const Answer again = call();
      const Answer third = call();
      expect(again.status == cuda::Status::kFailed && third.status == cuda::Status::kFailed,
             what + ": later");
      expect(again.message.find("illegal memory access") != std::string::npos, what + ": " + again.message);
      return found.message.find("after the launch of row_kernel, weights_kernel and token_kernel") !=
                     std::string::npos
                 ? 1
                 : 0;
    });
  expect(naming > 3, "sticky failures name the kernels: " + std::to_string(naming));
}

// Tests failures in the first call of a process, which creates the context of the device. Must run in a
// process that has not used the device.
void test_first_call(const std::string& name) {
  const EngineCall call = [] { return evaluate(loss_with(0, 0, true), nullptr); };
  struct Clean {
    emulation::Holdings holdings;
  };
  void* const memory =
      mmap(nullptr, sizeof(Clean), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Clean& clean = *static_cast<Clean*>(memory);
  in_child([&] {
    call();
    call();
    clean.holdings = emulation::holdings();
    return 0;
  });
  int64_t n = 1;
  while (in_child([&] {
           emulation::fail_call(n, Failing::kOnce);
           const Answer found = call();
           const std::string function = emulation::failed_call();
           if (function.empty()) return 1;
           const std::string what = name + ", failure " + std::to_string(n) + " in " + function;
           const Answer expected = call();
           expect(expected.status == cuda::Status::kOk, what + ": the next call: " + expected.message);
           expect_orderly_failure(found, function, expected, what);
           call();
           expect(emulation::holdings() == clean.holdings, what + ": nothing is lost");
           return 0;
         }) == 0)
    ++n;
  expect(n > 50, name + ": the number of functions");
  munmap(memory, sizeof(Clean));
}

// Tests that calls restore the current device of their thread, whatever fails.
void test_current_device() {
  in_child([] {
    setenv("POLICY_LOSS_EMULATION_DEVICES", "2", 1);
    const EngineCall call = [] { return evaluate(loss_with(0, 0, true), nullptr); };
    call();
    const int64_t count = calls_of_runtime(call);
    cudaSetDevice(1);
    for (int64_t n = 0; n <= count; ++n) {
      emulation::fail_call(n, Failing::kOnce);
      call();
      emulation::fail_call(0, Failing::kOnce);
      int device = -1;
      cudaGetDevice(&device);
      expect(device == 1, "the current device is restored after failure " + std::to_string(n));
    }
    return 0;
  });
}

// Tests that cudaErrorNotReady, which cudaEventQuery() returns while the device is busy, does not remain as
// the thread's last error.
void test_not_ready() {
  const Answer expected = evaluate(loss_with(0, 0, true), nullptr);
  for (int seed = 1; seed <= 8; ++seed) {
    const Answer found = shuffled(seed, [] { return evaluate(loss_with(0, 0, true), nullptr); });
    expect(found.is(expected), "the device is not ready: " + found.message);
    expect(cudaGetLastError() == cudaSuccess, "cudaErrorNotReady is cleared");
  }
}

void test_without_pools() {
  in_child([] {
    setenv("POLICY_LOSS_EMULATION_POOLS", "0", 1);
    const Function function = loss_with(0, 0, true);
    compare(on_cpu(function, small_batch(), kFailureCoefficients),
            on_device(function, small_batch(), kFailureCoefficients, nullptr, "no pools"), small_batch(),
            "no pools");
    expect(emulation::holdings().pools == 0, "no pool is created");
    test_failures_of({"no pools", [&] { return evaluate(function, nullptr); }});
    test_failures_of({"no pools, resident",
                      [&] { return with_resident_batch(function, with_defaults(advantages()[0])); }});
    return 0;
  });
  setenv("POLICY_LOSS_EMULATION_POOLS", "0", 1);
  test_first_call("the first call without pools");
  unsetenv("POLICY_LOSS_EMULATION_POOLS");
}

void test_in_fresh_process() {
  test_first_call("the first call");
  test_without_pools();
  test_current_device();
}

}  // namespace

std::vector<Piece> failure_pieces() {
  std::vector<Piece> pieces;
  pieces.push_back({"failures of the first call", test_in_fresh_process, true});
  for (const auto& some : {loss_calls(), other_calls()})
    for (const NamedCall& named : some)
      pieces.push_back({"failures in " + named.name, [named] { test_failures_of(named); }});
  for (const NamedCall& named : other_calls())
    if (named.name.starts_with("a resident batch"))
      pieces.push_back({"early failures in " + named.name, [named] { test_early_failures_of(named); }});
  pieces.push_back({"failures that are sticky", test_sticky_failures});
  pieces.push_back({"failures: not ready", test_not_ready});
  return pieces;
}

}  // namespace kernels_test

// Tests the host's side of a call: how many kernels it launches and how often it waits, what calls on a
// resident batch share, how the result reaches the host, uploads during other calls, and the
// memory that trim() gives back.
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "faults.h"
#include "test/native/emulation/traffic.h"
#include "test/native/kernels/evaluations.h"
#include "test/native/kernels/test.h"

namespace kernels_test {
namespace {

constexpr Coefficients kHostCoefficients{0.3, 0.05, -0.02};

// What a call did, as traffic.h counts it.
struct Counted {
  Outcome outcome;
  int64_t launches, waits;
};

Counted counted_on(const cuda::Resident* resident, const Function& function, const Batch& batch,
                   const std::string& what) {
  const int64_t launches = emulation::launches(), waits = emulation::waits();
  Outcome outcome = on_device(function, batch, kHostCoefficients, resident, what);
  return {std::move(outcome), emulation::launches() - launches, emulation::waits() - waits};
}

std::unique_ptr<Batch> small_batch(unsigned seed) {
  return draw_batch(shape_named("rows of whole chunks"), DType::kFloat32, false, seed);
}

Function ppo() {
  return make_function(0, 0, Aggregation::kTokenMean, kNone, false);
}

// Tests the numbers that docs/gpu.md gives, for every loss. A call on a resident batch with up to three
// arrays of results of at most a megabyte together waits once.
void test_launches_and_waits() {
  const auto batch = small_batch(3);
  for (int loss = kNone; loss < static_cast<int>(losses().size()); ++loss) {
    const RowSums row_sums = loss == kNone ? RowSums::kNever : losses()[loss].traits.row_sums;
    const std::string what = "launches of " + (loss == kNone ? "no policy loss" : losses()[loss].name);
    for (const bool others : {false, true}) {
      const Function function = make_function(loss, 0, Aggregation::kTokenMean, others ? 0 : kNone, others);
      const int64_t before = emulation::launches();
      cuda::Resident* const resident = upload(batch->view);
      expect(emulation::launches() - before == 1, what + ": the upload launches the mask pass");
      const Counted first = counted_on(resident, function, *batch, what);
      const Counted later = counted_on(resident, function, *batch, what);
      expect(first.launches == 2 ? row_sums != RowSums::kAlways
                                 : first.launches == 3 && row_sums != RowSums::kNever,
             what + ": " + std::to_string(first.launches));
      expect(later.launches == first.launches, what + ", later: " + std::to_string(later.launches));
      expect(first.waits == 1 && later.waits == 1, what + ", waits: " + std::to_string(later.waits));
      expect(later.outcome.same_bits(first.outcome), what + ": the same bits");
      cuda::release(resident);
      expect(counted_on(nullptr, function, *batch, what).launches == 3, what + ", from the host");
    }
  }
}

// Tests how many kernels a batch in host memory needs that is sent in several chunks.
void test_launches_per_chunk() {
  const auto batch = draw_batch({"chunks", 2600, 1000, {}}, DType::kFloat32, false, 15);
  const Counted call = counted_on(nullptr, ppo(), *batch, "chunks");
  compare(on_cpu(ppo(), *batch, kHostCoefficients), call.outcome, *batch, "chunks");
  expect(call.launches == 2 + 3, "three chunks: " + std::to_string(call.launches) + " launches");
  cuda::Resident* const resident = upload(batch->view);
  const Counted whole = counted_on(resident, ppo(), *batch, "chunks");
  expect(whole.launches == 2 && whole.outcome.same_bits(call.outcome), "chunks: the same bits as at once");
  cuda::release(resident);
}

// Tests a call that wants only the loss and its metrics: it has no copy to wait for.
void test_loss_alone() {
  const auto batch = small_batch(12), other = small_batch(13);
  const PreparedFunction prepared(ppo());
  const cuda::Request request = cuda::request_of(prepared, kHostCoefficients, {}, false);
  for (const Batch* each : {batch.get(), other.get()}) {
    const Outcome expected = on_cpu(ppo(), *each, kHostCoefficients);
    Outcome found = expected;
    cuda::Result result;
    cuda::Call call;
    call.result = &result;
    cuda::Problem problem;
    const int64_t before = emulation::waits();
    expect(cuda::evaluate_host(0, each->view, request, call, &problem) == cuda::Status::kOk, problem.message);
    expect(emulation::waits() > before, "the loss alone: waits");
    found.values.assign(found.values.size(), 0.0);
    cuda::finish_result(prepared, request, result, {.values = found.values.data()});
    write_counts(result.counts, found.counts.data());
    compare(expected, found, *each, "the loss alone");
  }
}

// Tests which calls on a resident batch use its mask pass, and that calls leave nothing behind.
void test_shared_mask_pass() {
  const auto batch = small_batch(4), other = small_batch(5);
  const auto repeated = small_batch(4);
  draw_repeats(repeated.get(), 3, false, 4);
  const std::string what = "shared mask pass";
  const Outcome expected = on_cpu(ppo(), *batch, kHostCoefficients);
  on_device(ppo(), *batch, kHostCoefficients, nullptr, what);  // lets the scratch memory grow
  const int64_t without_batch = emulation::holdings().device_bytes;
  cuda::Resident* const resident = upload(batch->view);
  cuda::Problem problem;
  const PreparedFunction prepared(ppo());
  const cuda::Request request = cuda::request_of(prepared, kHostCoefficients, {}, true);
  const int64_t with_batch = emulation::holdings().device_bytes;
  compare(expected, counted_on(resident, ppo(), *batch, what).outcome, *batch, what);
  expect(emulation::holdings().device_bytes == with_batch, what + ": a call keeps nothing");
  // Calls with repeats or with another mask neither use nor change it.
  const Counted with_repeats = counted_on(resident, ppo(), *repeated, what);
  compare(on_cpu(ppo(), *repeated, kHostCoefficients), with_repeats.outcome, *repeated, what + ", repeats");
  expect(with_repeats.launches == 3, what + ": a call with repeats launches the row pass");
  const int64_t launches = emulation::launches();
  Outcome of_other = empty_outcome(ppo(), *batch);
  cuda::Result result;
  cuda::Call with_mask = call_into(&of_other, &result);
  with_mask.mask = other->mask.data();
  expect(cuda::evaluate(resident, request, with_mask, &problem) == cuda::Status::kOk,
         what + ": another mask");
  expect(emulation::launches() - launches == 3, what + ": a call with a mask launches the row pass");
  const Counted later = counted_on(resident, ppo(), *batch, what);
  compare(expected, later.outcome, *batch, what + ", later");
  expect(later.launches == 2, what + ": a later call");

  // An update keeps the mask pass. The batch that it was made from may go.
  BatchView columns = batch->view;
  columns.mask = nullptr;
  columns.column[kLogprob] = other->view.column[kLogprob];
  cuda::Resident* updated = nullptr;
  BatchView nothing;
  nothing.layout = batch->view.layout;
  expect(cuda::update(resident, columns, nothing, {}, nullptr, &updated, &problem) == cuda::Status::kOk,
         what + ": " + problem.message);
  cuda::release(resident);
  expect(emulation::holdings().device_bytes == with_batch, what + ": is kept once");
  const Counted on_updated = counted_on(updated, ppo(), *batch, what);
  expect(on_updated.launches == 2, what + ": after an update");
  cuda::Resident* const fresh = upload([&] {
    BatchView view = batch->view;
    view.column[kLogprob] = other->view.column[kLogprob];
    return view;
  }());
  expect(on_updated.outcome.same_bits(counted_on(fresh, ppo(), *batch, what).outcome),
         what + ": the bits after an update");
  cuda::release(fresh);
  cuda::release(updated);
  expect(emulation::holdings().device_bytes == without_batch, what + ": the memory is freed");
}

// Tests that a call which fails leaves the batch as it was.
void test_failed_call() {
  const auto batch = small_batch(7);
  const Outcome expected = on_cpu(ppo(), *batch, kHostCoefficients);
  const PreparedFunction prepared(ppo());
  const cuda::Request request = cuda::request_of(prepared, kHostCoefficients, {}, true);
  std::string function;
  int64_t n = 0;
  do {
    const std::string what = "a failed call, " + std::to_string(++n);
    cuda::Resident* const resident = upload(batch->view);
    Outcome outcome = empty_outcome(ppo(), *batch);
    cuda::Result result;
    cuda::Problem problem;
    emulation::fail_call(n, emulation::Failing::kOnce);
    cuda::evaluate(resident, request, call_into(&outcome, &result), &problem);
    function = emulation::failed_call();
    emulation::fail_call(0, emulation::Failing::kOnce);
    for (int call = 0; call < 2; ++call)
      compare(expected, on_device(ppo(), *batch, kHostCoefficients, resident, what), *batch, what);
    cuda::release(resident);
  } while (!function.empty());
  expect(n > 20, "a failed call: the number of functions");
}

// Tests devices that cannot write to memory of the host.
void test_without_mapped_memory() {
  setenv("POLICY_LOSS_EMULATION_MAPPED", "0", 1);
  const auto batch = small_batch(6);
  for (int loss = kNone; loss < static_cast<int>(losses().size()); ++loss) {
    const Function function = make_function(loss, 1, Aggregation::kTokenMean, 0, true);
    compare(on_cpu(function, *batch, kHostCoefficients),
            on_device(function, *batch, kHostCoefficients, nullptr, "no mapped memory"), *batch,
            "no mapped memory");
  }
}

// Tests that trim() gives back all memory that is not in use, and nothing else, whatever fails.
void test_trim() {
  const auto batch = small_batch(14);
  const auto large = draw_batch(shape_named("rows longer than a chunk"), DType::kFloat32, false, 14);
  const Outcome expected = on_cpu(ppo(), *batch, kHostCoefficients);
  cuda::Problem problem;
  expect(cuda::trim(0, &problem) == cuda::Status::kOk && emulation::runtime_calls() == 0,
         "trim() before the first call does nothing");
  const auto use = [&](const cuda::Resident* resident) {
    on_device(ppo(), *large, kHostCoefficients, nullptr, "trim");
    compare(expected, on_device(ppo(), *batch, kHostCoefficients, resident, "trim"), *batch, "trim");
  };
  cuda::Resident* const resident = upload(batch->view);
  use(resident);
  const emulation::Holdings used = emulation::holdings();
  expect(emulation::cached_bytes() > 0, "trim: the pool keeps memory");
  expect(cuda::trim(0, &problem) == cuda::Status::kOk, problem.message);
  const emulation::Holdings trimmed = emulation::holdings();
  expect(emulation::cached_bytes() == 0, "trim: the pool is empty");
  expect(trimmed.device_bytes < used.device_bytes && trimmed.pinned_bytes < 10'000,
         "trim: " + std::to_string(trimmed.pinned_bytes) + " pinned bytes are left");
  use(resident);
  expect(cuda::trim(0, &problem) == cuda::Status::kOk && emulation::holdings() == trimmed, "trim again");
  std::string function;
  int64_t n = 0;
  do {
    ++n;
    const std::string what = "trim, failure " + std::to_string(n);
    use(resident);
    emulation::fail_call(n, emulation::Failing::kOnce);
    cuda::trim(0, &problem);
    function = emulation::failed_call();
    emulation::fail_call(0, emulation::Failing::kOnce);
    use(resident);
    expect(cuda::trim(0, &problem) == cuda::Status::kOk && emulation::holdings() == trimmed,
           what + " in " + function + ": nothing is lost");
  } while (!function.empty());
  expect(n > 20, "trim: the number of functions");
  cuda::release(resident);
}

// ---- Two calls in progress ----

// Stops the first call that shares out the copying of host memory, until another call has ended.
struct Gate {
  std::atomic<bool> is_closed = true, is_reached = false, is_open = false;
};
Gate& gate = *new Gate;

bool await(const std::atomic<bool>& flag) {
  for (int turn = 0; turn < 20'000 && !flag; ++turn) usleep(1000);
  return flag;
}

// Runs first() on another thread until it copies host memory, then runs second() to its end, and then lets
// first() go on. Expects that second() does not have to wait for first().
void run_in_the_middle(const std::function<void()>& first, const std::function<void()>& second,
                       const std::string& what) {
  gate.is_closed = true;
  gate.is_reached = gate.is_open = false;
  cuda::share_work_by([](int64_t pieces, void (*piece)(void*, int64_t), void* what) {
    if (gate.is_closed.exchange(false)) {
      gate.is_reached = true;
      expect(await(gate.is_open), "a call ends in the middle of another one");
    }
    for (int64_t i = 0; i < pieces; ++i) piece(what, i);
  });
  std::thread thread(first);
  expect(await(gate.is_reached), what + ": the first call copies memory");
  second();
  gate.is_open = true;
  thread.join();
}

void test_two_calls() {
  const auto large = draw_batch({"large", 1000, 600, {}}, DType::kFloat32, false, 9);
  const auto small = small_batch(10);
  const std::string what = "two calls in progress";
  on_device(ppo(), *small, kHostCoefficients, nullptr, what);
  const Outcome expected_large = on_cpu(ppo(), *large, kHostCoefficients);
  const Outcome expected_small = on_cpu(ppo(), *small, kHostCoefficients);
  const auto compute = [&](const Batch& batch, const Outcome& expected, const cuda::Resident* resident) {
    compare(expected, on_device(ppo(), batch, kHostCoefficients, resident, what), batch, what);
  };

  cuda::Resident* resident = nullptr;
  run_in_the_middle([&] { compute(*large, expected_large, nullptr); },
                    [&] { resident = upload(small->view); }, what + ", an upload during a computation");
  compute(*small, expected_small, resident);

  cuda::Resident* uploaded = nullptr;
  run_in_the_middle([&] { uploaded = upload(large->view); },
                    [&] {
                      compute(*small, expected_small, resident);
                      compute(*small, expected_small, nullptr);
                      cuda::release(resident);
                    },
                    what + ", a computation during an upload");
  compute(*large, expected_large, uploaded);
  cuda::release(uploaded);
}

// Many uploads and computations at the same time, in shuffled streams.
void test_many_calls() {
  const auto batch = small_batch(11);
  const Outcome expected = on_cpu(ppo(), *batch, kHostCoefficients);
  shuffled(11, [&] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        for (int turn = 0; turn < 20; ++turn) {
          cuda::Resident* const resident = upload(batch->view);
          for (int call = 0; call < 2; ++call)
            compare(expected, on_device(ppo(), *batch, kHostCoefficients, resident, "many calls"), *batch,
                    "many calls");
          cuda::release(resident);
        }
      });
    for (std::thread& thread : threads) thread.join();
    return 0;
  });
}

}  // namespace

std::vector<Piece> host_pieces() {
  return {{"host: launches and waits", test_launches_and_waits},
          {"host: launches per chunk", test_launches_per_chunk},
          {"host: loss alone", test_loss_alone},
          {"host: shared mask pass", test_shared_mask_pass},
          {"host: failed call", test_failed_call},
          {"host: no mapped memory", test_without_mapped_memory, true},
          {"host: trim", test_trim, true},
          {"host: two calls", test_two_calls, true},
          {"host: many calls", test_many_calls, true}};
}

}  // namespace kernels_test

// Tests the CPU engine's thread pool with many threads at once, under ThreadSanitizer. Several callers
// compute every function with Pool::run() and Pool::submit(). Meanwhile the number of threads changes, and
// some calls are aborted. Results must have the same bits as on one thread.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/advantages.h"
#include "cpu/engine.h"
#include "cpu/tile_reader.h"

using namespace policy_loss;

namespace {

constexpr int kCallers = 6;
constexpr int kRounds = 3;

std::atomic<int> failures{0};
std::atomic<int> checks{0};

void expect(bool holds, const std::string& what) {
  ++checks;
  if (!holds && ++failures <= 20) std::printf("does not hold: %s\n", what.c_str());
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// A task that reports when it is done, as the tasks of the Node addon do.
template <class Task>
class Reporting : public Task {
 public:
  using Task::Task;
  std::promise<void> finished;
  void done() override {
    Task::done();
    finished.set_value();
  }
};

enum class How { kHere, kRun, kSubmit };

template <class Task>
void perform(How how, const std::shared_ptr<Reporting<Task>>& task) {
  std::future<void> finished = task->finished.get_future();
  if (how == How::kHere) cpu::run_here(*task);
  if (how == How::kRun) cpu::Pool::shared().run(task);
  if (how == How::kSubmit) cpu::Pool::shared().submit(task);
  finished.wait();
}

// A batch that the engine divides into several chunks. One row is so long that it is cut into parts, and
// other rows are short. All callers read the same arrays.
struct Batch {
  std::vector<int32_t> offsets{0};
  std::vector<float> column[kColumns];
  std::vector<uint8_t> mask, expert;
  std::vector<double> rewards, baselines;
  std::vector<int32_t> groups, runs;
  BatchView view;
  int64_t tokens;

  Batch() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (const int32_t length : {40, 0, 9000, 40000, 8000, 9000, 3, 700}) {
      offsets.push_back(offsets.back() + length);
      expert.push_back(random() % 2);
      rewards.push_back(normal(random));
      baselines.push_back(normal(random));
      groups.push_back(static_cast<int32_t>(random() % 3));
      runs.push_back(static_cast<int32_t>(random() % 2));
    }
    tokens = offsets.back();
    for (int64_t i = 0; i < tokens; ++i) mask.push_back(random() % 4 != 0);
    for (std::vector<float>& numbers : column)
      for (int64_t i = 0; i < tokens; ++i) numbers.push_back(0.3f * normal(random) - 1.0f);
    view.layout = {static_cast<int64_t>(expert.size()), 40000, offsets.data()};
    for (int c = 0; c < kColumns; ++c) view.column[c].data = column[c].data();
    view.mask = mask.data();
    view.expert = expert.data();
  }
};

double option(const OptionInfo& option, const std::string& of) {
  if (option.choices) return 1;
  const std::string name = option.name;
  if (name == "cutoff_prob" || name == "lambda_coef") return 0.5;
  return name == "rank_penalty" && of == "grpo" ? 0.3 : 1.25;
}

template <class Info>
std::vector<double> options_of(const Info& info) {
  std::vector<double> options;
  for (const OptionInfo& one : info.options) options.push_back(option(one, info.name));
  return options;
}

// A call of one function. compute() returns all numbers that the call wrote, or an empty vector if the call
// was aborted. `expected` contains the numbers that one thread computes.
struct Call {
  std::string name;
  std::function<std::vector<float>(How, const int32_t* abort)> compute;
  std::vector<float> expected;
};

Call loss_call(const Batch& batch, int loss) {
  Function function;
  function.loss = loss;
  function.options = options_of(losses()[loss]);
  function.kl = loss % static_cast<int>(kl_estimators().size());
  function.entropy = true;
  const auto prepared = std::make_shared<const PreparedFunction>(function);
  const size_t values = value_names(function).size();
  return {losses()[loss].name,
          [&batch, prepared, values](How how, const int32_t* abort) {
            std::vector<float> grad(batch.tokens);
            std::vector<double> numbers(values);
            Outputs outputs;
            outputs.grad = grad.data();
            outputs.values = numbers.data();
            const auto task = std::make_shared<Reporting<cpu::Evaluation>>(
                prepared, batch.view, Coefficients{0.5, 0.1, 0.1}, Normalizer{}, outputs);
            task->set_abort_flag(abort);
            perform(how, task);
            if (task->aborted()) return std::vector<float>{};
            for (const double x : numbers) grad.push_back(static_cast<float>(x));
            return grad;
          },
          {}};
}

Call kl_call(const Batch& batch, int estimator) {
  return {kl_estimators()[estimator].name,
          [&batch, estimator](How how, const int32_t*) {
            std::vector<float> out(batch.tokens);
            const auto task = std::make_shared<Reporting<cpu::KlEvaluation>>(
                estimator, batch.view, batch.column[kEntropy].data(), 0.3, out.data());
            perform(how, task);
            out.push_back(static_cast<float>(task->mean_kl()));
            return out;
          },
          {}};
}

Call advantage_call(const Batch& batch, const AdvantageInfo& info) {
  const AdvantageFunction function{info.shape, info.index, options_of(info)};
  return {info.name,
          [&batch, function](How how, const int32_t* abort) {
            AdvantageBatch view{batch.view, batch.rewards.data(), batch.baselines.data()};
            view.groups = batch.groups.data();
            view.runs = batch.runs.data();
            std::vector<float> out(batch.tokens);
            std::vector<double> values(advantage_value_names(function).size());
            double row = 0;
            AdvantageOutputs outputs;
            outputs.advantages = out.data();
            outputs.values = values.data();
            const auto task =
                std::make_shared<Reporting<cpu::AdvantageEvaluation>>(function, view, outputs, 7, &row);
            task->set_abort_flag(abort);
            perform(how, task);
            if (task->aborted()) return std::vector<float>{};
            for (const double x : values) out.push_back(static_cast<float>(x));
            return out;
          },
          {}};
}

// A task whose phases have few or many pieces. It counts how often each piece runs.
class Counting : public cpu::Task {
 public:
  bool is_right() const { return phase_ == kPhases && !is_early_ && ran_once(kPhases - 1); }

  int64_t open_phase() override {
    if (phase_ >= 0 && !ran_once(phase_)) is_early_ = true;
    if (++phase_ == kPhases) return 0;
    counts_ = std::vector<std::atomic<int>>(kPieces[phase_]);
    return kPieces[phase_];
  }
  void work(int64_t piece) override { ++counts_[piece]; }
  void done() override {}

 private:
  static constexpr int64_t kPieces[] = {1, 700, 3, 40, 9, 2000, 8};
  static constexpr int kPhases = static_cast<int>(std::size(kPieces));

  bool ran_once(int phase) const {
    if (static_cast<int64_t>(counts_.size()) != kPieces[phase]) return false;
    for (const std::atomic<int>& count : counts_)
      if (count != 1) return false;
    return true;
  }

  int phase_ = -1;
  bool is_early_ = false;  // whether a phase began before the pieces of the one before had run
  std::vector<std::atomic<int>> counts_;
};

void count_pieces() {
  cpu::Pool::shared().set_threads(64);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller)
    callers.emplace_back([caller] {
      for (int round = 0; round < 30; ++round) {
        const auto task = std::make_shared<Reporting<Counting>>();
        perform((caller + round) % 2 == 0 ? How::kRun : How::kSubmit, task);
        expect(task->is_right(), "each piece runs once, in its phase");
      }
    });
  for (std::thread& caller : callers) caller.join();
}

// A caller may overwrite the mask with zeros after its tokens were counted. The search for the last one must
// then end at the start of the row. The zeros before it belong to another row.
void expect_end_in_overwritten_mask() {
  constexpr int kBefore = 300;
  const std::vector<uint8_t> mask(kBefore + 300, 0);
  for (const int length : {1, kGranule - 1, kGranule, kGranule + 1, 300})
    expect(end_of_unmasked(mask.data() + kBefore, length) == 0, "the end of a mask without tokens");
}

}  // namespace

int main() {
  count_pieces();
  const Batch batch;
  std::vector<Call> calls;
  for (int loss = 0; loss < static_cast<int>(losses().size()); ++loss)
    calls.push_back(loss_call(batch, loss));
  for (int estimator = 0; estimator < static_cast<int>(kl_estimators().size()); ++estimator)
    calls.push_back(kl_call(batch, estimator));
  for (const AdvantageInfo& info : advantages()) calls.push_back(advantage_call(batch, info));
  for (Call& call : calls) call.expected = call.compute(How::kHere, nullptr);

  expect_end_in_overwritten_mask();

  cpu::Pool::shared().set_threads(1);
  std::atomic<bool> ended{false};
  int32_t aborting = 0;
  std::thread meddler([&] {
    for (int turn = 0; !ended; ++turn) {
      cpu::Pool::shared().set_threads(1 + turn % 5);
      __atomic_store_n(&aborting, turn % 2, __ATOMIC_RELAXED);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller)
    callers.emplace_back([&, caller] {
      for (int round = 0; round < kRounds; ++round)
        for (size_t i = 0; i < calls.size(); ++i) {
          const Call& call = calls[(i * 7 + static_cast<size_t>(caller)) % calls.size()];
          const How how = (i + static_cast<size_t>(caller + round)) % 2 == 0 ? How::kRun : How::kSubmit;
          const bool may_abort = (i + static_cast<size_t>(round)) % 3 == 0;
          const std::vector<float> found = call.compute(how, may_abort ? &aborting : nullptr);
          expect((may_abort && found.empty()) || same_bits(found, call.expected), call.name);
          const int threads = cpu::Pool::shared().threads();
          expect(threads >= 1 && threads <= 5, "the number of threads");
        }
    });
  for (std::thread& caller : callers) caller.join();
  ended = true;
  meddler.join();
  std::printf("%d checks, %d failures\n", checks.load(), failures.load());
  return failures == 0 ? 0 : 1;
}

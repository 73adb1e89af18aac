// The CUDA kernels, run through the emulation and held against the CPU engine: every loss with every
// aggregation, KL estimator and dtype over layouts that are awkward for spans and quads. Then what the
// emulation itself is for: results keep their bits in any order of blocks and threads, and kernels that are
// broken on purpose are found out.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/engine.h"
#include "cuda/request.h"
#include "test/native/broken-kernels.h"

using namespace policy_loss;

namespace {

int failures = 0;
int checks = 0;

void expect(bool holds, const std::string& what) {
  ++checks;
  if (holds) return;
  if (++failures <= 20) std::printf("not so: %s\n", what.c_str());
}

// A batch in the host's memory, with NaN and Infinity under its mask.
struct Data {
  std::vector<float> column[kColumns];
  std::vector<uint16_t> half[kColumns];
  std::vector<uint8_t> mask, expert;
  std::vector<uint8_t> live;  // per token: unmasked, of a row that counts
  std::vector<uint32_t> copies;
  std::vector<int32_t> offsets;
  BatchView view;
  int64_t tokens = 0;
};

struct Shape {
  const char* name;
  int64_t rows, columns;
  std::vector<int32_t> lengths;  // of packed rows
};

uint16_t bfloat16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// Of normal numbers in float16's range, rounded towards zero.
uint16_t float16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000;
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127;
  if (exponent == 128) return static_cast<uint16_t>(sign | 0x7c00 | (bits & 0x7fffff ? 0x200 : 0));
  if (exponent < -14) return static_cast<uint16_t>(sign);
  if (exponent > 15) return static_cast<uint16_t>(sign | 0x7c00);
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent + 15) << 10 | (bits >> 13 & 0x3ff));
}

std::unique_ptr<Data> draw(const Shape& shape, DType dtype, bool per_row_advantages, unsigned seed) {
  auto data = std::make_unique<Data>();
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Layout& layout = data->view.layout;
  layout.rows = shape.rows;
  layout.columns = shape.columns;
  if (!shape.lengths.empty()) {
    data->offsets.push_back(0);
    for (const int32_t length : shape.lengths) data->offsets.push_back(data->offsets.back() + length);
    layout.offsets = data->offsets.data();
  }
  const int64_t tokens = data->tokens = layout.tokens();
  for (int64_t i = 0; i < tokens; ++i) data->mask.push_back(random() % 4 != 0 ? 1 + random() % 255 : 0);
  // A row and a stretch that are wholly masked.
  for (int64_t i = tokens / 3; i < tokens / 2; ++i) data->mask[i] = 0;
  for (int64_t row = 0; row < shape.rows; ++row) data->expert.push_back(random() % 3 == 0 ? 1 : 0);
  for (int c = 0; c < kColumns; ++c) {
    const bool per_row = c == kAdvantages && per_row_advantages;
    for (int64_t i = 0; i < (per_row ? shape.rows : tokens); ++i) {
      float x = normal(random);
      if (c == kOldLogprob || c == kRefLogprob) x = data->column[kLogprob][i] + 0.2f * x;
      if (c == kLogprob) x = -std::fabs(x);
      if (!per_row && data->mask[i] == 0 && c == kLogprob) x = std::numeric_limits<float>::quiet_NaN();
      if (!per_row && data->mask[i] == 0 && c != kLogprob) x = std::numeric_limits<float>::infinity();
      data->column[c].push_back(x);
    }
    for (const float x : data->column[c])
      data->half[c].push_back(dtype == DType::kBFloat16 ? bfloat16_bits(x) : float16_bits(x));
    data->view.column[c] = {
        dtype == DType::kFloat32 ? static_cast<const void*>(data->column[c].data()) : data->half[c].data(),
        dtype, per_row};
  }
  data->live = data->mask;
  data->view.mask = data->mask.data();
  data->view.expert = data->expert.data();
  return data;
}

double option_value(const std::string& name, const char* const* choices, int variant) {
  if (choices) {
    int n = 0;
    while (choices[n]) ++n;
    return variant % n;
  }
  if (name == "clip_range_low" || name == "epsilon_low") return 0.2;
  if (name == "clip_range_high" || name == "epsilon_high") return 0.25;
  if (name == "clip_ratio_c") return 1.3;
  if (name == "delta_sequence_masking") return 0.001;
  if (name == "mask_clip_range_low" || name == "mask_clip_range_high") return 0.3;
  if (name == "epsilon_low_prime" || name == "epsilon_high_prime") return 0.4;
  if (name == "advantage_threshold" || name == "label_smoothing") return 0.1;
  if (name == "cutoff_prob") return 0.8;
  if (name == "tau_neg") return 1.05;
  if (name == "ppo_mini_batch_size" || name == "train_batch_size_usual") return 8;
  if (name == "train_batch_size_expert") return 4;
  if (name == "enable_mask_clip" || name == "differentiate_gate" || name == "use_dynamic_bsz" ||
      name == "pairwise")
    return variant % 2;
  return 1;
}

struct Outcome {
  std::vector<float> grad, grad_entropy;
  std::vector<double> values, counts;
  uint32_t present = 0;

  bool same_bits(const Outcome& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
    };
    return present == other.present && same(values, other.values) && same(counts, other.counts) &&
           same(grad, other.grad) && same(grad_entropy, other.grad_entropy);
  }
};

Outcome room(const Function& function, const Data& data) {
  Outcome outcome;
  outcome.grad.assign(data.tokens, 42.0f);
  outcome.grad_entropy.assign(data.tokens, 42.0f);
  outcome.values.assign(value_names(function).size(), 0.0);
  outcome.counts.assign(kCounts, 42.0);
  return outcome;
}

Outcome on_cpu(const Function& function, const Data& data, const Coefficients& coefficients,
               const Normalizer& normalizer = {}) {
  Outcome outcome = room(function, data);
  Outputs outputs;
  outputs.grad = outcome.grad.data();
  outputs.grad_entropy = outcome.grad_entropy.data();
  outputs.values = outcome.values.data();
  outputs.counts = outcome.counts.data();
  cpu::Evaluation evaluation(std::make_shared<cpu::PreparedFunction>(function), data.view, coefficients,
                             normalizer, outputs);
  cpu::run_here(evaluation);
  outcome.present = evaluation.outputs().present;
  return outcome;
}

// From the host's memory, or of a batch on the device where one is given.
Outcome on_device(const Function& function, const Data& data, const Coefficients& coefficients,
                  const cuda::Resident* resident, const std::string& what,
                  const Normalizer& normalizer = {}) {
  Outcome outcome = room(function, data);
  cuda::Result result;
  cuda::Call call;
  call.result = &result;
  call.grad = outcome.grad.data();
  call.grad_entropy = outcome.grad_entropy.data();
  if (resident) call.copies = data.view.copies;
  cuda::Problem problem;
  const cuda::Request request = cuda::request_of(function, coefficients, normalizer);
  const cuda::Status status = resident ? cuda::evaluate(resident, request, call, &problem)
                                       : cuda::evaluate_host(0, data.view, request, call, &problem);
  expect(status == cuda::Status::kOk, what + ": " + problem.message);
  outcome.present = cuda::finish_result(function, request, result, outcome.values.data());
  write_counts(result.counts, outcome.counts.data());
  return outcome;
}

bool close(double a, double b, double scale) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::fabs(a - b) <= 1e-5 * std::fabs(b) + 1e-6 * scale;
}

// What all weights add up to: a sum is as exact as its terms are large, whatever it comes to.
double sum_of_weights(const Data& data) {
  const Layout& layout = data.view.layout;
  return std::fmax(
      1.0, static_cast<double>(data.tokens) / static_cast<double>(std::min(layout.rows, layout.columns)));
}

void compare(const Outcome& expected, const Outcome& found, const Data& data, const std::string& what) {
  const double scale_of_values = data.tokens > 0 ? sum_of_weights(data) : 1.0;
  expect(expected.present == found.present, what + ": which metrics there are");
  for (size_t i = 0; i < expected.values.size(); ++i)
    expect(close(found.values[i], expected.values[i], scale_of_values),
           what + ": value " + std::to_string(i) + " " + std::to_string(found.values[i]) + ", not " +
               std::to_string(expected.values[i]));
  expect(expected.counts == found.counts, what + ": counts");
  const auto compare_grad = [&](const std::vector<float>& a, const std::vector<float>& b, const char* name) {
    double scale = 0;
    for (const float x : b) scale = std::fmax(scale, std::fabs(x));
    bool all = true;
    for (int64_t i = 0; i < data.tokens; ++i)
      all = all && (data.live[i] != 0 ? close(a[i], b[i], scale) : a[i] == 0.0f && !std::signbit(a[i]));
    expect(all, what + ": " + name);
  };
  compare_grad(found.grad, expected.grad, "grad");
  compare_grad(found.grad_entropy, expected.grad_entropy, "grad of entropy");
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"T no multiple of 4", 6, 37, {}},
      {"rows of whole spans", 4, 512, {}},
      {"rows longer than a span", 2, 20011, {}},
      {"tiny rows", 30, 3, {}},
      {"packed", 8, 3001, {0, 5, 1, 700, 0, 33, 3001, 2}},
      {"one token", 2, 1, {}},
      {"no columns", 4, 0, {}},
      {"no rows", 0, 7, {}},
  };
  return all;
}

Function make_function(int loss, int variant, Aggregation aggregation, int kl, bool entropy) {
  Function function;
  function.loss = loss;
  if (loss != kNone)
    for (const LossInfo::Option& option : losses()[loss].options)
      function.options.push_back(option_value(option.name, option.choices, variant));
  function.loss_aggregation[0] = aggregation;
  function.loss_aggregation[1] = static_cast<Aggregation>((static_cast<int>(aggregation) + variant) % 4);
  function.kl = kl;
  function.kl_aggregation = static_cast<Aggregation>((static_cast<int>(aggregation) + 1) % 4);
  function.entropy = entropy;
  function.entropy_of_usual_rows_only = variant % 2 == 1;
  function.entropy_aggregation = static_cast<Aggregation>((static_cast<int>(aggregation) + 2) % 4);
  return function;
}

void test_functions() {
  const Coefficients coefficients{0.3, 0.05, -0.02};
  const int estimators = static_cast<int>(kl_estimators().size());
  for (const Shape& shape : shapes())
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      const auto data = draw(shape, dtype, dtype == DType::kFloat16, 7);
      cuda::Resident* resident = nullptr;
      cuda::Problem problem;
      expect(cuda::upload(0, data->view, nullptr, &resident, &problem) == cuda::Status::kOk,
             std::string("upload: ") + problem.message);
      int turn = 0;
      for (int loss = kNone; loss < static_cast<int>(losses().size()); ++loss)
        for (int aggregation = 0; aggregation < 4; ++aggregation) {
          // Of a function without loss all estimators; of the others one after another.
          const int variants = loss == kNone ? estimators + 1 : 2;
          for (int variant = 0; variant < variants; ++variant) {
            ++turn;
            const int kl = loss == kNone ? variant - 1 : turn % (estimators + 1) - 1;
            const Function function =
                make_function(loss, variant + aggregation * 2, static_cast<Aggregation>(aggregation), kl,
                              turn % 3 != 0 || (loss == kNone && kl == kNone));
            const std::string what = std::string(shape.name) + ", dtype " +
                                     std::to_string(static_cast<int>(dtype)) + ", " +
                                     (loss == kNone ? "no loss" : losses()[loss].name) + ", aggregation " +
                                     std::to_string(aggregation) + ", kl " + std::to_string(kl);
            const Outcome expected = on_cpu(function, *data, coefficients);
            const Outcome found = on_device(function, *data, coefficients, resident, what);
            compare(expected, found, *data, what);
            setenv("POLICY_LOSS_EMULATION_SHUFFLE", std::to_string(turn).c_str(), 1);
            const Outcome shuffled = on_device(function, *data, coefficients, nullptr, what);
            unsetenv("POLICY_LOSS_EMULATION_SHUFFLE");
            expect(found.same_bits(shuffled), what + ": the same bits from the host, in another order");
          }
        }
      cuda::release(resident);
    }
}

// Lets rows count more than once, or not at all; those may hold anything, but where pairs of rows are summed.
void draw_copies(Data* data, unsigned most, bool pairs, unsigned seed) {
  std::mt19937 random(seed);
  const Layout& layout = data->view.layout;
  for (int64_t row = 0; row < layout.rows; ++row) data->copies.push_back(random() % (most + 1));
  data->view.copies = data->copies.data();
  for (int64_t row = 0; row < layout.rows; ++row) {
    if (data->copies[row] != 0) continue;
    for (int64_t i = layout.begin(row); i < layout.begin(row) + layout.length(row); ++i) {
      data->live[i] = 0;
      for (int c = 0; c < kColumns && !pairs; ++c)
        data->column[c][i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

// Rows that count more than once, batches that are parts of others, and functions without a term.
void test_copies_and_normalizers() {
  const Coefficients coefficients{0.3, 0.05, -0.02};
  const int estimators = static_cast<int>(kl_estimators().size());
  int turn = 0;
  for (const Shape& shape : shapes())
    for (int loss = kNone; loss < static_cast<int>(losses().size()); ++loss)
      for (int aggregation = 0; aggregation < 4; ++aggregation) {
        ++turn;
        const auto data = draw(shape, DType::kFloat32, false, static_cast<unsigned>(turn));
        const bool pairs = loss != kNone && losses()[loss].pairs;
        // Some with copies, of which some have no row left; some with a normalizer.
        if (turn % 3 != 0) draw_copies(data.get(), turn % 7 == 0 ? 0 : 3, pairs, static_cast<unsigned>(turn));
        Normalizer normalizer;
        normalizer.given = turn % 3 != 1;
        normalizer.counts = {{11.0 * turn, 7000}, {20, 9}, 40};
        const bool terms = loss != kNone || aggregation != 0;
        const int kl = terms ? turn % (estimators + 1) - 1 : kNone;
        const Function function =
            make_function(loss, turn, static_cast<Aggregation>(aggregation), kl, terms && turn % 2 == 0);
        const std::string what = std::string("copies or normalizer, ") + shape.name + ", " +
                                 (loss == kNone ? "no loss" : losses()[loss].name) + ", aggregation " +
                                 std::to_string(aggregation) + ", kl " + std::to_string(kl);
        const Outcome expected = on_cpu(function, *data, coefficients, normalizer);
        const Outcome found = on_device(function, *data, coefficients, nullptr, what, normalizer);
        compare(expected, found, *data, what);
        cuda::Resident* resident = nullptr;
        cuda::Problem problem;
        expect(cuda::upload(0, data->view, nullptr, &resident, &problem) == cuda::Status::kOk,
               std::string("upload: ") + problem.message);
        setenv("POLICY_LOSS_EMULATION_SHUFFLE", std::to_string(turn).c_str(), 1);
        const Outcome shuffled = on_device(function, *data, coefficients, resident, what, normalizer);
        unsetenv("POLICY_LOSS_EMULATION_SHUFFLE");
        expect(found.same_bits(shuffled), what + ": the same bits where it lies on the device");
        cuda::release(resident);
      }
}

void test_a_million_tokens() {
  const Coefficients coefficients{0.3, 0.05, -0.02};
  const auto data = draw({"a million tokens", 250, 4001, {}}, DType::kFloat32, false, 5);
  const int estimators = static_cast<int>(kl_estimators().size());
  for (int loss = 0; loss < static_cast<int>(losses().size()); ++loss) {
    const Function function =
        make_function(loss, loss, static_cast<Aggregation>(loss % 4), loss % estimators, true);
    const std::string what = std::string("a million tokens, ") + losses()[loss].name;
    compare(on_cpu(function, *data, coefficients), on_device(function, *data, coefficients, nullptr, what),
            *data, what);
  }
}

void test_kl_values() {
  for (const Shape& shape : shapes())
    for (int estimator = 0; estimator < static_cast<int>(kl_estimators().size()); ++estimator)
      for (const bool with_base : {false, true}) {
        auto data = draw(shape, DType::kFloat32, false, 11);
        std::vector<float> base(data->tokens, 0.5f), expected(data->tokens), found(data->tokens, 42.0f);
        cpu::KlEvaluation evaluation(estimator, data->view, with_base ? base.data() : nullptr, 0.3,
                                     expected.data());
        cpu::run_here(evaluation);
        double mean = -1;
        cuda::KlCall call;
        call.estimator = estimator;
        call.columns = reads(kLogprob) | reads(kRefLogprob) | reads(kOldLogprob);
        call.base = with_base ? base.data() : nullptr;
        call.scale = 0.3;
        call.out = found.data();
        call.mean_kl = &mean;
        cuda::Problem problem;
        const std::string what =
            std::string("values of ") + kl_estimators()[estimator].name + ", " + shape.name;
        setenv("POLICY_LOSS_EMULATION_SHUFFLE", "1", 1);
        expect(cuda::kl_host(0, data->view, call, &problem) == cuda::Status::kOk,
               what + ": " + problem.message);
        unsetenv("POLICY_LOSS_EMULATION_SHUFFLE");
        for (int64_t i = 0; i < data->tokens; ++i)
          expect(close(found[i], expected[i], 1.0), what + " at " + std::to_string(i));
        if (with_base) expect(close(mean, evaluation.mean_kl(), 1.0), what + ": mean");
      }
}

void test_errors() {
  const auto data = draw(shapes()[2], DType::kFloat32, false, 3);
  const Function function = make_function(0, 0, Aggregation::kTokenMean, kNone, false);
  const Outcome expected = on_cpu(function, *data, {});
  cuda::Result result;
  cuda::Call call;
  call.result = &result;
  cuda::Problem problem;
  const cuda::Request request = cuda::request_of(function, {}, {});
  expect(cuda::device_count(&problem) == 1, "one emulated device");
  for (const int device : {-1, 1})
    expect(cuda::evaluate_host(device, data->view, request, call, &problem) == cuda::Status::kNoDevice,
           "a device that does not exist");

  setenv("POLICY_LOSS_EMULATION_MEMORY", "100000", 1);
  expect(cuda::evaluate_host(0, data->view, request, call, &problem) == cuda::Status::kOutOfMemory,
         "memory that runs out");
  cuda::Resident* resident = nullptr;
  expect(cuda::upload(0, data->view, nullptr, &resident, &problem) == cuda::Status::kOutOfMemory,
         "memory that runs out in an upload");
  unsetenv("POLICY_LOSS_EMULATION_MEMORY");

  const int32_t aborted = 1;
  call.abort = &aborted;
  expect(cuda::evaluate_host(0, data->view, request, call, &problem) == cuda::Status::kAborted, "an abort");
  compare(expected, on_device(function, *data, {}, nullptr, "after errors"), *data, "after errors");

  std::vector<std::thread> threads;
  std::vector<Outcome> outcomes(4);
  for (Outcome& outcome : outcomes)
    threads.emplace_back([&] { outcome = on_device(function, *data, {}, nullptr, "at once"); });
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes)
    expect(outcome.same_bits(outcomes[0]), "calls at once do not disturb each other");
}

void test_emulation() {
  for (const BrokenKernel& kernel : broken_kernels()) {
    const std::string found = kernel.run();
    expect(found.find(kernel.expected) != std::string::npos,
           std::string(kernel.name) + " is found out; said: " + (found.empty() ? "nothing" : found));
  }
}

}  // namespace

int main() {
  test_functions();
  test_copies_and_normalizers();
  test_a_million_tokens();
  test_kl_values();
  test_errors();
  test_emulation();
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}

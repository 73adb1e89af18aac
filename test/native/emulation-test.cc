// The CUDA kernels, run through the emulation and held against the CPU engine: every loss with every
// aggregation, KL estimator and dtype over layouts that are awkward for spans, steps and quads. Then what the
// emulation itself is for: results keep their bits in any order of blocks and threads, and kernels that are
// broken on purpose are found out.
#include <algorithm>
#include <atomic>
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

#include "cpu/advantages.h"
#include "cpu/engine.h"
#include "cuda/request.h"
#include "test/native/broken-kernels.h"
#include "test/native/emulation/traffic.h"

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
  layout.row_length = shape.columns;
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
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
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
  cpu::Evaluation evaluation(std::make_shared<PreparedFunction>(function), data.view, coefficients,
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
  if (resident) call.repeats = data.view.repeats;
  cuda::Problem problem;
  const PreparedFunction prepared(function);
  const cuda::Request request = cuda::request_of(prepared, coefficients, normalizer);
  const cuda::Status status = resident ? cuda::evaluate(resident, request, call, &problem)
                                       : cuda::evaluate_host(0, data.view, request, call, &problem);
  expect(status == cuda::Status::kOk, what + ": " + problem.message);
  outcome.present = cuda::finish_result(prepared, request, result, outcome.values.data());
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
      1.0, static_cast<double>(data.tokens) / static_cast<double>(std::min(layout.rows, layout.row_length)));
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
      {"rows of very many spans", 2, 5003, {}},
      {"packed rows of very many spans", 2, 6001, {6001, 4002}},
  };
  return all;
}

Function make_function(int loss, int variant, Aggregation aggregation, int kl, bool entropy) {
  Function function;
  function.loss = loss;
  if (loss != kNone)
    for (const OptionInfo& option : losses()[loss].options)
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
      expect(cuda::upload(0, data->view, {}, nullptr, &resident, &problem) == cuda::Status::kOk,
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
  data->view.repeats = data->copies.data();
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
        const bool pairs = loss != kNone && losses()[loss].traits.by_pairs;
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
        expect(cuda::upload(0, data->view, {}, nullptr, &resident, &problem) == cuda::Status::kOk,
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

// Set by a piece of work on the host, as a caller's abort may come at any time.
int32_t abort_flag = 0;
std::atomic<int64_t> pieces_until_abort = 0;

// Of more pieces than the staging has room for, both ways, copied by several threads.
void test_staging() {
  cuda::share_work_by([](int64_t pieces, void (*piece)(void*, int64_t), void* what) {
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
  });
  const auto data = draw({"four million tokens", 4, 1000003, {}}, DType::kFloat32, false, 6);
  const Function function = make_function(0, 0, Aggregation::kTokenMean, kNone, true);
  const PreparedFunction prepared(function);
  const Outcome expected = on_cpu(function, *data, {});

  // On the way there, and on the way back.
  for (const int64_t pieces : {10, 50, 75}) {
    pieces_until_abort = pieces;
    abort_flag = 0;
    cuda::Result result;
    cuda::Call call;
    Outcome room_for_it = room(function, *data);
    call.result = &result;
    call.grad = room_for_it.grad.data();
    call.abort = &abort_flag;
    cuda::Problem problem;
    expect(cuda::evaluate_host(0, data->view, cuda::request_of(prepared, {}, {}), call, &problem) ==
               cuda::Status::kAborted,
           "an abort after " + std::to_string(pieces) + " pieces");
  }
  const std::string what = "four million tokens from the host and back, after aborts";
  compare(expected, on_device(function, *data, {}, nullptr, what), *data, what);
}

// Where a row's tail is masked, its columns are not read; but for its facts, which come with the mask.
void test_masked_tails() {
  const auto data = draw({"masked tails", 8, 4096, {}}, DType::kFloat32, false, 8);
  for (int loss = 0; loss < static_cast<int>(losses().size()); ++loss) {
    if (losses()[loss].traits.row_sums != RowSums::kNever) continue;
    const Function function = make_function(loss, 0, Aggregation::kTokenMean, kNone, false);
    int64_t bytes[2];
    for (const bool tails : {false, true}) {
      const int64_t until = tails ? 1024 : 4096;
      for (int64_t i = 0; i < data->tokens; ++i) data->mask[i] = data->live[i] = i % 4096 < until ? 1 : 0;
      for (std::vector<float>& column : data->column)
        for (float& x : column)
          if (!std::isfinite(x)) x = -1.0f;
      const std::string what = std::string("masked tails, ") + losses()[loss].name;
      cuda::Resident* resident = nullptr;
      cuda::Problem problem;
      cuda::upload(0, data->view, {}, nullptr, &resident, &problem);
      const int64_t before = emulation::bytes_copied();
      compare(on_cpu(function, *data, {}), on_device(function, *data, {}, resident, what), *data, what);
      bytes[tails] = emulation::bytes_copied() - before;
      cuda::release(resident);
    }
    expect(bytes[0] > 0 && bytes[1] * 4 == bytes[0], "masked tails are not read by " + losses()[loss].name);
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

// ---- Advantage functions ----

// What advantage functions read, with NaN where nothing may be read: log-probabilities under the mask.
struct Inputs {
  std::unique_ptr<Data> data;
  std::vector<double> rewards, baselines;
  std::vector<int32_t> groups, runs;
  AdvantageBatch batch;

  void take_token_rewards_away() { batch.tokens.column[kTokenRewards] = {}; }
};

// The groups are of any size, some of one row; some rewards are the same.
Inputs draw_inputs(const Shape& shape, DType dtype, unsigned seed) {
  Inputs inputs;
  inputs.data = draw(shape, dtype, false, seed);
  Data& data = *inputs.data;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int c = 0; c < kColumns; ++c) {
    const bool masked = c == kSampledLogprob || c == kTeacherLogprob;
    data.half[c].clear();
    for (int64_t i = 0; i < data.tokens; ++i) {
      float& x = data.column[c][i];
      x = c == kTokenRewards ? 0.5f + 0.1f * normal(random) : normal(random);
      if (masked && data.mask[i] == 0) x = std::numeric_limits<float>::quiet_NaN();
      data.half[c].push_back(dtype == DType::kBFloat16 ? bfloat16_bits(x) : float16_bits(x));
    }
    if (dtype == DType::kFloat32) data.view.column[c].data = data.column[c].data();
    if (dtype != DType::kFloat32) data.view.column[c].data = data.half[c].data();
  }
  for (int64_t row = 0; row < shape.rows; ++row) {
    inputs.rewards.push_back(static_cast<double>(random() % 5) / 10);
    inputs.baselines.push_back(normal(random));
    inputs.groups.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(shape.rows / 4 + 1)) *
                            1000);
    inputs.runs.push_back(static_cast<int32_t>(random() % 3) - 1);
  }
  // Not all the same, which whitening would have nothing but roundings left of.
  if (shape.rows > 0) inputs.rewards[0] = 1.25;
  inputs.batch.tokens = data.view;
  inputs.batch.tokens.expert = nullptr;
  inputs.batch.rewards = inputs.rewards.data();
  inputs.batch.baselines = inputs.baselines.data();
  inputs.batch.groups = inputs.groups.data();
  inputs.batch.runs = inputs.runs.data();
  return inputs;
}

double advantage_option(const std::string& name, const char* const* choices, int variant) {
  if (choices) return variant % 2;
  if (name == "gamma") return variant % 2 == 0 ? 1.0 : 0.97;
  if (name == "lam") return variant % 3 == 0 ? 1.0 : 0.9;
  if (name == "std_threshold") return variant % 4 < 2 ? NAN : 0.15;
  if (name == "duplicate_experiences") return variant % 8 >= 4 ? 1 : 0;
  if (name == "rank_penalty") return variant % 3 == 0 ? 0 : 0.5;
  if (name == "enable_step_norm" || name == "std_normalize") return variant / 2 % 2;
  if (name == "lambda_coef") return variant % 4 == 0 ? 0 : variant % 4 == 1 ? 1 : 0.3;
  if (name == "baseline_shift") return -0.1;
  if (name == "epsilon") return 1e-6;
  if (name == "tau") return 0.7;
  return 1.5;
}

AdvantageFunction make_advantage(const AdvantageInfo& info, int variant) {
  AdvantageFunction function{info.shape, info.index, {}};
  for (const OptionInfo& option : info.options)
    function.options.push_back(advantage_option(option.name, option.choices, variant));
  return function;
}

struct Advantages {
  std::vector<float> advantages, returns, scores;
  std::vector<uint32_t> copies;
  std::vector<double> values;
  NonFiniteValue not_finite;

  Advantages(const AdvantageFunction& function, const Inputs& inputs)
      : advantages(inputs.data->tokens, 42.0f),
        returns(inputs.data->tokens, 42.0f),
        scores(inputs.rewards.size(), 42.0f),
        copies(inputs.rewards.size(), 42),
        values(advantage_value_names(function).size(), 42.0) {}

  bool same_bits(const Advantages& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() &&
             (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
    };
    return same(advantages, other.advantages) && same(returns, other.returns) && same(scores, other.scores) &&
           copies == other.copies && same(values, other.values);
  }
};

constexpr uint64_t kSeed = 12;

Advantages advantages_on_cpu(const AdvantageFunction& function, const Inputs& inputs) {
  Advantages result(function, inputs);
  double row = 0;
  AdvantageOutputs outputs;
  outputs.advantages = result.advantages.data();
  outputs.returns = result.returns.data();
  outputs.scores = result.scores.data();
  outputs.repeats = result.copies.data();
  outputs.values = result.values.data();
  cpu::AdvantageEvaluation evaluation(function, inputs.batch, outputs, kSeed, &row);
  cpu::run_here(evaluation);
  result.not_finite = evaluation.not_finite();
  return result;
}

Advantages advantages_on_device(const AdvantageFunction& function, const Inputs& inputs,
                                const cuda::Resident* resident, const std::string& what) {
  Advantages result(function, inputs);
  const cuda::FoundInputs found(inputs.batch);
  const cuda::AdvantageRequest request = cuda::request_of(function, kSeed);
  cuda::AdvantageIngredients ingredients;
  cuda::AdvantageCall call;
  call.not_finite = &result.not_finite;
  call.advantages = result.advantages.data();
  call.returns = result.returns.data();
  call.scores = result.scores.data();
  call.repeats = result.copies.data();
  ingredients.ask(function, inputs.batch.tokens.layout.rows, found.inputs().groups.size, &call);
  cuda::Problem problem;
  const cuda::Status status = resident ? cuda::advantages(resident, request, call, &problem)
                                       : cuda::advantages_host(0, found.inputs(), request, call, &problem);
  expect(status == cuda::Status::kOk, what + ": " + problem.message);
  if (result.not_finite.input == NonFiniteInput::kNone) ingredients.finish(function, result.values.data());
  return result;
}

// The loss columns' view has the same log-probabilities of the policy that sampled.
cuda::Resident* upload_inputs(const Inputs& inputs, const BatchView& view) {
  cuda::Resident* resident = nullptr;
  cuda::Problem problem;
  const cuda::FoundInputs found(inputs.batch);
  expect(cuda::upload(0, view, found.inputs(), nullptr, &resident, &problem) == cuda::Status::kOk,
         std::string("upload: ") + problem.message);
  return resident;
}

// To 1e-6 of each number, or of the largest: where terms cancel, no more is left.
template <class T>
bool all_close(const std::vector<T>& found, const std::vector<T>& expected) {
  double scale = 0;
  for (const T x : expected) scale = std::fmax(scale, std::fabs(x));
  bool all = found.size() == expected.size();
  for (size_t i = 0; all && i < found.size(); ++i)
    all = std::fabs(static_cast<double>(found[i]) - static_cast<double>(expected[i])) <=
          1e-6 * std::fabs(expected[i]) + 3e-7 * scale;
  return all;
}

std::vector<Shape> advantage_shapes() {
  std::vector<Shape> all = shapes();
  all.push_back({"many groups", 900, 5, {}});
  all.push_back({"packed and short", 7, 400, {3, 400, 0, 1, 129, 4, 17}});
  return all;
}

void test_advantages() {
  int turn = 0;
  for (const Shape& shape : advantage_shapes())
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      Inputs inputs = draw_inputs(shape, dtype, 21);
      for (const bool token_rewards : {true, false}) {
        if (!token_rewards) inputs.take_token_rewards_away();
        cuda::Resident* const resident = upload_inputs(inputs, inputs.data->view);
        for (const AdvantageInfo& info : advantages())
          for (int variant = 0; variant < 12; ++variant) {
            const AdvantageFunction function = make_advantage(info, variant);
            const std::string what = "advantages of " + info.name + ", variant " + std::to_string(variant) +
                                     ", " + shape.name + ", dtype " +
                                     std::to_string(static_cast<int>(dtype)) +
                                     (token_rewards ? "" : ", a reward per row");
            AdvantageBatch& batch = inputs.batch;
            batch.runs = info.name == "step_wise_grpo" ? inputs.runs.data() : nullptr;
            const Advantages expected = advantages_on_cpu(function, inputs);
            batch.runs = inputs.runs.data();
            const Advantages found = advantages_on_device(function, inputs, nullptr, what);
            expect(found.not_finite.input == NonFiniteInput::kNone, what + ": finite");
            expect(found.copies == expected.copies, what + ": copies");
            expect(all_close(found.advantages, expected.advantages), what + ": advantages");
            expect(all_close(found.returns, expected.returns), what + ": returns");
            expect(all_close(found.scores, expected.scores), what + ": scores");
            expect(all_close(found.values, expected.values), what + ": metrics");
            setenv("POLICY_LOSS_EMULATION_SHUFFLE", std::to_string(++turn).c_str(), 1);
            const Advantages shuffled = advantages_on_device(function, inputs, resident, what);
            unsetenv("POLICY_LOSS_EMULATION_SHUFFLE");
            expect(found.same_bits(shuffled), what + ": the same bits where it lies, in another order");
          }
        cuda::release(resident);
      }
    }
}

void test_advantages_not_finite() {
  for (const char* name : {"ppo", "reinforceplusplus", "remax", "rloo", "grpo"})
    for (const NonFiniteInput culprit : {NonFiniteInput::kRewards, NonFiniteInput::kTokenRewards,
                                         NonFiniteInput::kValues, NonFiniteInput::kBaselines}) {
      Inputs inputs = draw_inputs(shapes()[4], DType::kFloat32, 5);
      const auto info = std::find_if(advantages().begin(), advantages().end(),
                                     [&](const AdvantageInfo& one) { return one.name == name; });
      const AdvantageFunction function = make_advantage(*info, 0);
      // In the third row of several tokens, and in a later one, masked and unmasked.
      if (culprit == NonFiniteInput::kRewards) inputs.take_token_rewards_away();
      for (const int64_t row : {int64_t{6}, int64_t{3}}) {
        inputs.rewards[row] = culprit == NonFiniteInput::kRewards ? INFINITY : 0;
        inputs.baselines[row] = culprit == NonFiniteInput::kBaselines ? NAN : 0;
        const int64_t begin = inputs.data->view.layout.begin(row);
        for (const int64_t i : {begin + 5, begin + 6}) {
          if (culprit == NonFiniteInput::kTokenRewards) inputs.data->column[kTokenRewards][i] = -INFINITY;
          if (culprit == NonFiniteInput::kValues) inputs.data->column[kValues][i] = NAN;
        }
      }
      inputs.batch.runs = nullptr;
      const std::string what =
          std::string("not finite, ") + name + ", " + std::to_string(static_cast<int>(culprit));
      const Advantages expected = advantages_on_cpu(function, inputs);
      const Advantages found = advantages_on_device(function, inputs, nullptr, what);
      expect(found.not_finite.input == expected.not_finite.input &&
                 found.not_finite.row == expected.not_finite.row,
             what + ": found " + std::to_string(static_cast<int>(found.not_finite.input)) + " in row " +
                 std::to_string(found.not_finite.row));
      if (found.not_finite.input != NonFiniteInput::kNone)
        expect(found.same_bits(Advantages(function, inputs)), what + ": nothing is written");
    }
}

// A loss on advantages that are computed on the way, against the CPU's one after the other.
void test_evaluation_with_advantages() {
  const Coefficients coefficients{0.3, 0.05, -0.02};
  int turn = 0;
  for (const Shape& shape : {shapes()[0], shapes()[4]})
    for (const AdvantageInfo& info : advantages())
      for (int loss = 0; loss < static_cast<int>(losses().size()); ++loss) {
        if ((losses()[loss].traits.all_columns() & reads(kAdvantages)) == 0) continue;
        ++turn;
        const auto data = draw(shape, DType::kFloat32, false, static_cast<unsigned>(turn));
        Inputs inputs = draw_inputs(shape, DType::kFloat32, static_cast<unsigned>(turn));
        inputs.batch.tokens.mask = data->mask.data();
        inputs.batch.tokens.column[kSampledLogprob] = data->view.column[kOldLogprob];
        inputs.batch.runs = info.name == "step_wise_grpo" ? inputs.runs.data() : nullptr;
        const AdvantageFunction advantage = make_advantage(info, turn);
        const Function function =
            make_function(loss, turn, static_cast<Aggregation>(turn % 4), turn % 2 - 1, true);
        const std::string what = std::string(losses()[loss].name) + " on advantages of " + info.name;

        const Advantages first = advantages_on_cpu(advantage, inputs);
        cuda::Resident* const resident = upload_inputs(inputs, data->view);
        data->column[kAdvantages] = first.advantages;
        data->view.column[kAdvantages] = {data->column[kAdvantages].data(), DType::kFloat32, false};
        if (info.shape == AdvantageShape::kGroup) {
          data->copies = first.copies;
          data->view.repeats = data->copies.data();
          for (int64_t row = 0; row < shape.rows; ++row)
            for (int64_t i = data->view.layout.begin(row);
                 data->copies[row] == 0 && i < data->view.layout.begin(row) + data->view.layout.length(row);
                 ++i)
              data->live[i] = 0;
        }
        const Outcome expected = on_cpu(function, *data, coefficients);

        Outcome found = room(function, *data);
        std::vector<double> values(first.values.size());
        NonFiniteValue not_finite;
        cuda::Result result;
        cuda::Call call;
        cuda::AdvantageIngredients ingredients;
        const PreparedFunction prepared(function);
        const cuda::Request request = cuda::request_of(prepared, coefficients, {});
        const cuda::AdvantageRequest advantage_request = cuda::request_of(advantage, kSeed);
        call.result = &result;
        call.grad = found.grad.data();
        call.grad_entropy = found.grad_entropy.data();
        call.advantage = &advantage_request;
        call.advantage_call.not_finite = &not_finite;
        ingredients.ask(advantage, shape.rows, cuda::resident_info(resident).group_count,
                        &call.advantage_call);
        cuda::Problem problem;
        setenv("POLICY_LOSS_EMULATION_SHUFFLE", std::to_string(turn).c_str(), 1);
        expect(cuda::evaluate(resident, request, call, &problem) == cuda::Status::kOk,
               what + ": " + problem.message);
        unsetenv("POLICY_LOSS_EMULATION_SHUFFLE");
        found.present = cuda::finish_result(prepared, request, result, found.values.data());
        write_counts(result.counts, found.counts.data());
        ingredients.finish(advantage, values.data());
        compare(expected, found, *data, what);
        expect(all_close(values, first.values), what + ": the advantages' metrics");
        cuda::release(resident);
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
  const PreparedFunction prepared(function);
  const cuda::Request request = cuda::request_of(prepared, {}, {});
  expect(cuda::count_devices(&problem).count == 1, "one emulated device");
  for (const int device : {-1, 1})
    expect(cuda::evaluate_host(device, data->view, request, call, &problem) == cuda::Status::kNoDevice,
           "a device that does not exist");

  setenv("POLICY_LOSS_EMULATION_MEMORY", "100000", 1);
  expect(cuda::evaluate_host(0, data->view, request, call, &problem) == cuda::Status::kOutOfMemory,
         "memory that runs out");
  cuda::Resident* resident = nullptr;
  expect(cuda::upload(0, data->view, {}, nullptr, &resident, &problem) == cuda::Status::kOutOfMemory,
         "memory that runs out in an upload");
  unsetenv("POLICY_LOSS_EMULATION_MEMORY");

  const int32_t aborted = 1;
  call.abort = &aborted;
  expect(cuda::evaluate_host(0, data->view, request, call, &problem) == cuda::Status::kAborted, "an abort");
  compare(expected, on_device(function, *data, {}, nullptr, "after errors"), *data, "after errors");

  const Inputs inputs = draw_inputs(shapes()[2], DType::kFloat32, 3);
  const cuda::FoundInputs found(inputs.batch);
  const AdvantageFunction gae =
      make_advantage(*std::find_if(advantages().begin(), advantages().end(),
                                   [](const AdvantageInfo& info) { return info.name == "ppo"; }),
                     0);
  NonFiniteValue not_finite;
  cuda::AdvantageCall advantage_call;
  advantage_call.not_finite = &not_finite;
  setenv("POLICY_LOSS_EMULATION_MEMORY", "200000", 1);
  expect(cuda::advantages_host(0, found.inputs(), cuda::request_of(gae, 0), advantage_call, &problem) ==
             cuda::Status::kOutOfMemory,
         "memory that runs out for advantages");
  unsetenv("POLICY_LOSS_EMULATION_MEMORY");
  advantage_call.abort = &aborted;
  expect(cuda::advantages_host(0, found.inputs(), cuda::request_of(gae, 0), advantage_call, &problem) ==
             cuda::Status::kAborted,
         "an abort of advantages");
  expect(all_close(advantages_on_device(gae, inputs, nullptr, "after errors").advantages,
                   advantages_on_cpu(gae, inputs).advantages),
         "advantages after errors");

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
  test_masked_tails();
  test_kl_values();
  test_advantages();
  test_advantages_not_finite();
  test_evaluation_with_advantages();
  test_errors();
  test_emulation();
  test_staging();
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}

#include "test/native/kernels/evaluations.h"

#include <algorithm>
#include <cmath>

#include "cpu/engine.h"
#include "test/native/kernels/test.h"

namespace kernels_test {
namespace {

double loss_option(const std::string& name, const char* const* choices, int variant) {
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

// Returns the largest sum of the tokens' weights in any aggregation, or 1 if that is larger. The rounding
// error of a weighted sum is proportional to it, even if the terms of the sum cancel.
double sum_of_weights(const Batch& batch) {
  const Layout& layout = batch.view.layout;
  if (batch.tokens == 0) return 1.0;
  return std::fmax(
      1.0, static_cast<double>(batch.tokens) / static_cast<double>(std::min(layout.rows, layout.row_length)));
}

void compare_gradients(const std::vector<float>& expected, const std::vector<float>& found,
                       const Batch& batch, const std::string& what) {
  double scale = 0;
  for (const float x : expected) scale = std::fmax(scale, std::fabs(x));
  bool all = true;
  for (int64_t i = 0; i < batch.tokens; ++i)
    all = all && (batch.live[i] != 0 ? close(found[i], expected[i], scale)
                                     : found[i] == 0.0f && !std::signbit(found[i]));
  expect(all, what);
}

}  // namespace

bool Outcome::same_bits(const Outcome& other) const {
  return present == other.present && kernels_test::same_bits(values, other.values) &&
         kernels_test::same_bits(counts, other.counts) && kernels_test::same_bits(grad, other.grad) &&
         kernels_test::same_bits(grad_entropy, other.grad_entropy);
}

Outcome empty_outcome(const Function& function, const Batch& batch) {
  Outcome outcome;
  outcome.grad.assign(batch.tokens, 42.0f);
  outcome.grad_entropy.assign(batch.tokens, 42.0f);
  outcome.values.assign(value_names(function).size(), 0.0);
  outcome.counts.assign(kCounts, 42.0);
  return outcome;
}

Function make_function(int loss, int variant, Aggregation aggregation, int kl, bool entropy) {
  const auto shifted = [&](int by) {
    return static_cast<Aggregation>((static_cast<int>(aggregation) + by) % 4);
  };
  Function function;
  function.loss = loss;
  if (loss != kNone)
    for (const OptionInfo& option : losses()[loss].options)
      function.options.push_back(loss_option(option.name, option.choices, variant));
  function.loss_aggregation[0] = aggregation;
  function.loss_aggregation[1] = shifted(variant);
  function.kl = kl;
  function.kl_aggregation = shifted(1);
  function.entropy = entropy;
  function.entropy_of_usual_rows_only = variant % 2 == 1;
  function.entropy_aggregation = shifted(2);
  return function;
}

Outcome on_cpu(const Function& function, const Batch& batch, const Coefficients& coefficients,
               const Normalizer& normalizer) {
  Outcome outcome = empty_outcome(function, batch);
  Outputs outputs;
  outputs.grad = outcome.grad.data();
  outputs.grad_entropy = outcome.grad_entropy.data();
  outputs.values = outcome.values.data();
  outputs.counts = outcome.counts.data();
  cpu::Evaluation evaluation(std::make_shared<PreparedFunction>(function), batch.view, coefficients,
                             normalizer, outputs);
  cpu::run_here(evaluation);
  outcome.present = evaluation.outputs().present;
  return outcome;
}

cuda::Call call_into(Outcome* outcome, cuda::Result* result) {
  cuda::Call call;
  call.result = result;
  call.grad = outcome->grad.data();
  call.grad_entropy = outcome->grad_entropy.data();
  return call;
}

cuda::KlCall kl_call_into(float* out, double* mean, int estimator, const float* base) {
  cuda::KlCall call;
  call.estimator = estimator;
  call.columns = reads(kLogprob) | reads(kRefLogprob) | reads(kOldLogprob);
  call.base = base;
  call.scale = kKlScale;
  call.out = out;
  call.mean_kl = mean;
  return call;
}

Outcome on_device(const Function& function, const Batch& batch, const Coefficients& coefficients,
                  const cuda::Resident* resident, const std::string& what, const Normalizer& normalizer) {
  Outcome outcome = empty_outcome(function, batch);
  cuda::Result result;
  cuda::Call call = call_into(&outcome, &result);
  if (resident) call.repeats = batch.view.repeats;
  cuda::Problem problem;
  const PreparedFunction prepared(function);
  const cuda::Request request = cuda::request_of(prepared, coefficients, normalizer, true);
  const cuda::Status status = resident ? cuda::evaluate(resident, request, call, &problem)
                                       : cuda::evaluate_host(0, batch.view, request, call, &problem);
  expect(status == cuda::Status::kOk, what + ": " + problem.message);
  outcome.present = cuda::finish_result(prepared, request, result, {.values = outcome.values.data()});
  write_counts(result.counts, outcome.counts.data());
  return outcome;
}

cuda::Resident* upload(const BatchView& batch, const cuda::AdvantageInputs& inputs) {
  cuda::Resident* resident = nullptr;
  cuda::Problem problem;
  expect(cuda::upload(0, batch, inputs, {}, nullptr, &resident, &problem) == cuda::Status::kOk,
         std::string("upload: ") + problem.message);
  return resident;
}

bool close(double a, double b, double scale) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::fabs(a - b) <= 1e-5 * std::fabs(b) + 1e-6 * scale;
}

void compare(const Outcome& expected, const Outcome& found, const Batch& batch, const std::string& what) {
  expect(expected.present == found.present, what + ": which metrics are present");
  for (size_t i = 0; i < expected.values.size(); ++i)
    expect(close(found.values[i], expected.values[i], sum_of_weights(batch)),
           what + ": value " + std::to_string(i) + " is " + std::to_string(found.values[i]) + ", expected " +
               std::to_string(expected.values[i]));
  expect(expected.counts == found.counts, what + ": counts");
  compare_gradients(expected.grad, found.grad, batch, what + ": grad");
  compare_gradients(expected.grad_entropy, found.grad_entropy, batch, what + ": grad of entropy");
}

}  // namespace kernels_test

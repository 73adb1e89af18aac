#include "test/native/kernels/advantages.h"

#include <cmath>
#include <limits>
#include <random>

#include "cpu/advantages.h"
#include "cpu/engine.h"
#include "test/native/kernels/test.h"

namespace kernels_test {

Inputs draw_inputs(const Shape& shape, DType dtype, unsigned seed) {
  Inputs inputs;
  inputs.data = draw_batch(shape, dtype, false, seed);
  Batch& data = *inputs.data;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int c = 0; c < kColumns; ++c) {
    const bool masked = c != kTokenLevelRewardsInput && c != kValuesInput;
    data.half[c].clear();
    for (int64_t i = 0; i < data.tokens; ++i) {
      float& x = data.column[c][i];
      x = c == kTokenLevelRewardsInput ? 0.5f + 0.1f * normal(random) : normal(random);
      // Keeps the energies of tokens (advantage/token_baseline.h) positive, whatever their log-probability.
      if (c == kOldLogprobInput) x = -std::fabs(x);
      if (c == kSumPiSquaredInput) x = 2.0f + std::fabs(x);
      if (masked && data.mask[i] == 0) x = std::numeric_limits<float>::quiet_NaN();
      data.half[c].push_back(half_bits(x, dtype));
    }
    if (dtype == DType::kFloat32)
      data.view.column[c].data = data.column[c].data();
    else
      data.view.column[c].data = data.half[c].data();
  }
  for (int64_t row = 0; row < shape.rows; ++row) {
    inputs.rewards.push_back(static_cast<double>(random() % 5) / 10);
    inputs.baselines.push_back(normal(random));
    inputs.groups.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(shape.rows / 4 + 1)) *
                            1000);
    inputs.runs.push_back(static_cast<int32_t>(random() % 3) - 1);
  }
  // Makes one reward different. If all rewards were equal, whitening would divide one rounding error by
  // another.
  if (shape.rows > 0) inputs.rewards[0] = 1.25;
  inputs.batch.tokens = data.view;
  inputs.batch.tokens.expert = nullptr;
  inputs.batch.rewards = inputs.rewards.data();
  inputs.batch.baselines = inputs.baselines.data();
  inputs.batch.groups = inputs.groups.data();
  inputs.batch.runs = inputs.runs.data();
  return inputs;
}

Advantages::Advantages(const AdvantageFunction& function, const Inputs& inputs)
    : advantages(inputs.data->tokens, 42.0f),
      returns(inputs.data->tokens, 42.0f),
      scores(inputs.rewards.size(), 42.0f),
      repeats(inputs.rewards.size(), 42),
      values(advantage_value_names(function).size(), 42.0) {}

bool Advantages::same_bits(const Advantages& other) const {
  return kernels_test::same_bits(advantages, other.advantages) &&
         kernels_test::same_bits(returns, other.returns) && kernels_test::same_bits(scores, other.scores) &&
         repeats == other.repeats && kernels_test::same_bits(values, other.values);
}

Advantages advantages_on_cpu(const AdvantageFunction& function, const Inputs& inputs) {
  Advantages result(function, inputs);
  double row = 0;
  AdvantageOutputs outputs;
  outputs.advantages = result.advantages.data();
  outputs.returns = result.returns.data();
  outputs.scores = result.scores.data();
  outputs.repeats = result.repeats.data();
  outputs.values = result.values.data();
  cpu::AdvantageEvaluation evaluation(function, inputs.batch, outputs, kSeed, &row);
  cpu::run_here(evaluation);
  result.not_finite = evaluation.not_finite();
  return result;
}

cuda::AdvantageCall call_into(Advantages* result) {
  cuda::AdvantageCall call;
  call.not_finite = &result->not_finite;
  call.advantages = result->advantages.data();
  call.returns = result->returns.data();
  call.scores = result->scores.data();
  call.repeats = result->repeats.data();
  return call;
}

Advantages advantages_on_device(const AdvantageFunction& function, const Inputs& inputs,
                                const cuda::Resident* resident, const std::string& what) {
  Advantages result(function, inputs);
  const cuda::FoundInputs found(inputs.batch);
  const cuda::AdvantageRequest request = cuda::request_of(function, kSeed);
  cuda::AdvantageIngredients ingredients;
  cuda::AdvantageCall call = call_into(&result);
  ingredients.ask(function, inputs.batch.tokens.layout.rows, found.inputs().groups.size, &call);
  cuda::Problem problem;
  const cuda::Status status = resident ? cuda::advantages(resident, request, call, &problem)
                                       : cuda::advantages_host(0, found.inputs(), request, call, &problem);
  expect(status == cuda::Status::kOk, what + ": " + problem.message);
  if (result.not_finite.input == NonFiniteInput::kNone) ingredients.finish(function, result.values.data());
  return result;
}

cuda::Resident* upload_inputs(const Inputs& inputs, const BatchView& view) {
  // Losses and advantage functions share one column of values. Advantages read those of masked tokens too,
  // which are NaN in the batch of a loss.
  BatchView shared = view;
  shared.column[kValues] = inputs.batch.tokens.column[kValuesInput];
  const cuda::FoundInputs found(inputs.batch);
  return upload(shared, found.inputs());
}

}  // namespace kernels_test

// Compares the CUDA kernels of advantage functions with the CPU engine. Also tests calls that compute
// advantages and then a loss from them.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cpu/advantages.h"
#include "cpu/engine.h"
#include "test/native/kernels/advantages.h"
#include "test/native/kernels/test.h"

namespace kernels_test {
namespace {

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
  if (name == "norm_adv_by_std_in_grpo" || name == "handle_zero_tail") return variant % 2;
  return 1.5;
}

AdvantageFunction make_advantage(const AdvantageInfo& info, int variant) {
  AdvantageFunction function{info.shape, info.index, {}};
  for (const OptionInfo& option : info.options)
    function.options.push_back(advantage_option(option.name, option.choices, variant));
  return function;
}

// Returns the advantage function with up to 12 different sets of options. A function with few options has
// fewer sets.
std::vector<AdvantageFunction> make_variants(const AdvantageInfo& info) {
  std::vector<AdvantageFunction> functions;
  std::vector<std::vector<double>> seen;
  for (int variant = 0; variant < 12; ++variant) {
    AdvantageFunction function = make_advantage(info, variant);
    const bool is_new = std::none_of(seen.begin(), seen.end(), [&](const std::vector<double>& options) {
      return same_bits(options, function.options);  // not ==, because an option may be NaN
    });
    if (!is_new) continue;
    seen.push_back(function.options);
    functions.push_back(std::move(function));
  }
  return functions;
}

const AdvantageInfo& advantage_named(const std::string& name) {
  return *std::find_if(advantages().begin(), advantages().end(),
                       [&](const AdvantageInfo& info) { return info.name == name; });
}

// Returns whether all numbers agree. Each may differ by 1e-6 of its own magnitude plus 3e-7 of the largest
// magnitude. The second part allows for rounding errors of sums whose terms cancel.
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

void test_function(const AdvantageInfo& info, const AdvantageFunction& function, Inputs& inputs,
                   const cuda::Resident* resident, const std::string& what, int turn) {
  inputs.batch.runs = info.name == "step_wise_grpo" ? inputs.runs.data() : nullptr;
  const Advantages expected = advantages_on_cpu(function, inputs);
  inputs.batch.runs = inputs.runs.data();
  const Advantages found = advantages_on_device(function, inputs, nullptr, what);
  expect(found.not_finite.input == NonFiniteInput::kNone, what + ": finite");
  expect(found.repeats == expected.repeats, what + ": repeats");
  expect(all_close(found.advantages, expected.advantages), what + ": advantages");
  expect(all_close(found.returns, expected.returns), what + ": returns");
  expect(all_close(found.scores, expected.scores), what + ": scores");
  expect(all_close(found.values, expected.values), what + ": metrics");
  const Advantages again =
      shuffled(turn, [&] { return advantages_on_device(function, inputs, resident, what); });
  expect(found.same_bits(again), what + ": the same bits from a resident batch, in another order");
}

void test_advantages(const Shape& shape, DType dtype, int turn) {
  Inputs inputs = draw_inputs(shape, dtype, 21);
  for (const bool token_rewards : {true, false}) {
    if (!token_rewards) inputs.batch.tokens.column[kTokenLevelRewardsInput] = {};
    BatchView view = inputs.data->view;
    view.column[kTeacherLogprob] = inputs.batch.tokens.column[kTeacherLogprobInput];
    cuda::Resident* const resident = upload_inputs(inputs, view);
    for (const AdvantageInfo& info : advantages()) {
      int variant = 0;
      for (const AdvantageFunction& function : make_variants(info)) {
        const std::string what = "advantages of " + info.name + ", variant " + std::to_string(variant++) +
                                 ", " + shape.name + ", " + name_of(dtype) +
                                 (token_rewards ? "" : ", a reward per row");
        test_function(info, function, inputs, resident, what, ++turn);
      }
    }
    cuda::release(resident);
  }
}

// Tests that a call reports the first input value that is NaN or infinite, and writes no other result.
void test_not_finite(const std::string& name, NonFiniteInput input) {
  Inputs inputs = draw_inputs(shape_named("packed"), DType::kFloat32, 5);
  const AdvantageFunction function = make_advantage(advantage_named(name), 0);
  if (input == NonFiniteInput::kRewards) inputs.batch.tokens.column[kTokenLevelRewardsInput] = {};
  // Makes the input NaN or infinite in two rows, at two neighbouring tokens if it has a value per token.
  for (const int64_t row : {int64_t{6}, int64_t{3}}) {
    inputs.rewards[row] = input == NonFiniteInput::kRewards ? INFINITY : 0;
    inputs.baselines[row] = input == NonFiniteInput::kBaselines ? NAN : 0;
    const int64_t begin = inputs.data->view.layout.begin(row);
    for (const int64_t i : {begin + 5, begin + 6}) {
      if (input == NonFiniteInput::kTokenRewards) inputs.data->column[kTokenLevelRewardsInput][i] = -INFINITY;
      if (input == NonFiniteInput::kValues) inputs.data->column[kValuesInput][i] = NAN;
    }
  }
  inputs.batch.runs = nullptr;
  const std::string what = "not finite, " + name + ", " + std::to_string(static_cast<int>(input));
  const Advantages expected = advantages_on_cpu(function, inputs);
  const Advantages found = advantages_on_device(function, inputs, nullptr, what);
  expect(
      found.not_finite.input == expected.not_finite.input && found.not_finite.row == expected.not_finite.row,
      what + ": found " + std::to_string(static_cast<int>(found.not_finite.input)) + " in row " +
          std::to_string(found.not_finite.row));
  if (found.not_finite.input != NonFiniteInput::kNone)
    expect(found.same_bits(Advantages(function, inputs)), what + ": nothing is written");
}

void test_all_not_finite() {
  for (const char* name : {"ppo", "reinforceplusplus", "remax", "rloo", "grpo", "verl/gae", "verl/gdpo",
                           "verl/tir_optimal_token_baseline"})
    for (const NonFiniteInput input : {NonFiniteInput::kRewards, NonFiniteInput::kTokenRewards,
                                       NonFiniteInput::kValues, NonFiniteInput::kBaselines})
      test_not_finite(name, input);
}

// Stores computed advantages in the batch. If by_group is true, the advantage function works on groups and
// can drop or repeat rows. So `repeats` (how often each row counts) is stored too.
void take_advantages(const Advantages& advantages, bool by_group, Batch* batch) {
  batch->column[kAdvantages] = advantages.advantages;
  batch->view.column[kAdvantages] = {batch->column[kAdvantages].data(), DType::kFloat32, false};
  if (!by_group) return;
  batch->repeats = advantages.repeats;
  batch->view.repeats = batch->repeats.data();
  const Layout& layout = batch->view.layout;
  for (int64_t row = 0; row < layout.rows; ++row)
    for (int64_t i = layout.begin(row);
         batch->repeats[row] == 0 && i < layout.begin(row) + layout.length(row); ++i)
      batch->live[i] = 0;
}

// Computes advantages and a loss from them in a single call on the device. Compares the results with two
// separate calls on the CPU.
void test_loss_on_advantages(const Shape& shape, const AdvantageInfo& info, int loss, int turn) {
  const Coefficients coefficients{0.3, 0.05, -0.02};
  const auto batch = draw_batch(shape, DType::kFloat32, false, static_cast<unsigned>(turn));
  Inputs inputs = draw_inputs(shape, DType::kFloat32, static_cast<unsigned>(turn));
  inputs.batch.tokens.mask = batch->mask.data();
  inputs.batch.tokens.column[kOldLogprobInput] = batch->view.column[kOldLogprob];
  inputs.batch.tokens.column[kTeacherLogprobInput] = batch->view.column[kTeacherLogprob];
  inputs.batch.runs = info.name == "step_wise_grpo" ? inputs.runs.data() : nullptr;
  const AdvantageFunction advantage = make_advantage(info, turn);
  const Function function = make_function(loss, turn, static_cast<Aggregation>(turn % 4), turn % 2 - 1, true);
  const std::string what = losses()[loss].name + " on advantages of " + info.name;

  cuda::Resident* const resident = upload_inputs(inputs, batch->view);
  const Advantages first = advantages_on_cpu(advantage, inputs);
  take_advantages(first, info.shape == AdvantageShape::kGroup, batch.get());
  const Outcome expected = on_cpu(function, *batch, coefficients);

  Outcome found = empty_outcome(function, *batch);
  std::vector<double> values(first.values.size());
  NonFiniteValue not_finite;
  cuda::Result result;
  cuda::Call call;
  cuda::AdvantageIngredients ingredients;
  const PreparedFunction prepared(function);
  const cuda::Request request = cuda::request_of(prepared, coefficients, {}, true);
  const cuda::AdvantageRequest advantage_request = cuda::request_of(advantage, kSeed);
  call.result = &result;
  call.grad = found.grad.data();
  call.grad_entropy = found.grad_entropy.data();
  call.advantage = &advantage_request;
  call.advantage_call.not_finite = &not_finite;
  ingredients.ask(advantage, shape.rows, cuda::resident_info(resident).group_count, &call.advantage_call);
  cuda::Problem problem;
  const cuda::Status status =
      shuffled(turn, [&] { return cuda::evaluate(resident, request, call, &problem); });
  expect(status == cuda::Status::kOk, what + ": " + problem.message);
  found.present = cuda::finish_result(prepared, request, result, {.values = found.values.data()});
  write_counts(result.counts, found.counts.data());
  ingredients.finish(advantage, values.data());
  compare(expected, found, *batch, what);
  expect(all_close(values, first.values), what + ": the advantages' metrics");
  cuda::release(resident);
}

void test_losses_on_advantages(const Shape& shape, int turn) {
  for (const AdvantageInfo& info : advantages())
    for (int loss = 0; loss < static_cast<int>(losses().size()); ++loss)
      if ((losses()[loss].traits.all_columns() & reads(kAdvantages)) != 0)
        test_loss_on_advantages(shape, info, loss, ++turn);
}

// Returns the shapes of all tests, and three more: one with many groups, one with short packed rows, and one
// with a row that all warps share.
const std::vector<Shape>& advantage_shapes() {
  static const std::vector<Shape> all = [] {
    std::vector<Shape> all = shapes();
    all.push_back({"many groups", 900, 5, {}});
    all.push_back({"packed and short", 7, 400, {3, 400, 0, 1, 129, 4, 17}});
    all.push_back({"a long row among short ones", 6, 8201, {3, 0, 8201, 17, 0, 130}});
    return all;
  }();
  return all;
}

}  // namespace

std::vector<Piece> advantage_pieces() {
  std::vector<Piece> pieces;
  int turn = 0;
  for (const char* name : {"packed", "rows of a length not divisible by 4"})
    pieces.push_back({std::string("losses on advantages, ") + name,
                      [name, turn = turn += 1000] { test_losses_on_advantages(shape_named(name), turn); }});
  for (const Shape& shape : advantage_shapes())
    for (const DType dtype : dtypes_of(shape))
      pieces.push_back({std::string("advantages, ") + shape.name + ", " + name_of(dtype),
                        [&shape, dtype, turn = turn += 1000] { test_advantages(shape, dtype, turn); }});
  pieces.push_back({"advantages, not finite", test_all_not_finite});
  return pieces;
}

}  // namespace kernels_test

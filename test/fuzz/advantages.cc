// Fuzzes advantage functions.
#include "cpu/advantages.h"
#include "engine/advantages.h"
#include "test/fuzz/options.h"
#include "test/fuzz/targets.h"
#include "test/fuzz/tasks.h"

namespace fuzz {
namespace {

// The results that a call is to compute. `shift` is the number of elements by which their memory is
// misaligned (see Array).
struct Wanted {
  bool advantages, returns, scores, repeats, spreads;
  uint64_t seed;
  int shift;
};

// A call to test, which the fuzzer's input describes. `inputs` points into the arrays of this struct.
struct Call {
  AdvantageFunction function;
  Batch batch;
  Array<double> rewards, baselines;
  Array<int32_t> groups, runs;
  AdvantageBatch inputs;
  Wanted wanted{};
};

struct Outcome {
  Array<float> advantages, returns, scores;
  Array<uint32_t> repeats;
  Array<double> values;
  Array<Spread> spreads;
  NonFiniteValue not_finite;

  bool is_finite() const { return not_finite.input == NonFiniteInput::kNone; }
  bool same_bits(const Outcome& other) const {
    if (not_finite.input != other.not_finite.input || not_finite.row != other.not_finite.row) return false;
    return !is_finite() || (advantages.same_bits(other.advantages) && returns.same_bits(other.returns) &&
                            scores.same_bits(other.scores) && repeats.same_bits(other.repeats) &&
                            values.same_bits(other.values) && spreads.same_bits(other.spreads));
  }
};

Outcome compute(const Call& call, Where where, const int32_t* abort) {
  Outcome result;
  AdvantageOutputs outputs;
  const Wanted& wanted = call.wanted;
  const int64_t rows = call.batch.view.layout.rows;
  const auto want = [&]<class T>(bool is_wanted, int64_t size, Array<T>* array, T** out) {
    if (!is_wanted) return;
    *array = to_be_written<T>(size, where, wanted.shift);
    *out = array->data();
  };
  want(wanted.advantages, call.batch.tokens, &result.advantages, &outputs.advantages);
  want(wanted.returns, call.batch.tokens, &result.returns, &outputs.returns);
  want(wanted.scores, rows, &result.scores, &outputs.scores);
  want(wanted.repeats, rows, &result.repeats, &outputs.repeats);
  want(wanted.spreads, rows, &result.spreads, &outputs.spreads);
  want(true, static_cast<int64_t>(advantage_value_names(call.function).size()), &result.values,
       &outputs.values);
  double row = -1;
  const auto task =
      std::make_shared<cpu::AdvantageEvaluation>(call.function, call.inputs, outputs, wanted.seed, &row);
  task->set_abort_flag(abort);
  perform(where, task);
  require(task->aborted() == (abort != nullptr), "an aborted call reports it");
  require(!task->out_of_memory(), "there is memory");
  result.not_finite = task->not_finite();
  if (!result.is_finite())
    require(row == static_cast<double>(result.not_finite.row) && row >= 0 && row < static_cast<double>(rows),
            "the row of a value that is not finite");
  return result;
}

// Reads the columns of a batch from the fuzzer's input. `token_rewards` says whether the batch gets a column
// of rewards per token.
void read_columns(Bytes& in, Random& random, Values values, bool token_rewards, Batch* batch) {
  const ColumnForm numbers{-kMostAdvantage, kMostAdvantage};
  const ColumnForm logprobs{kLeastLogprob, 0};
  if (token_rewards) read_column(in, random, values, kTokenLevelRewardsInput, numbers, batch);
  read_column(in, random, values, kOldLogprobInput, logprobs, batch);
  ColumnForm teacher = logprobs;
  teacher.near = in.flag() ? batch : nullptr;
  teacher.near_column = kOldLogprobInput;
  read_column(in, random, values, kTeacherLogprobInput, teacher, batch);
  read_column(in, random, values, kValuesInput, numbers, batch);
  // Keeps the energies of tokens (advantage/token_baseline.h) positive.
  read_column(in, random, values, kSumPiSquaredInput, {2, 4}, batch);
  if (in.flag()) read_column(in, random, values, kRolloutIsWeightsInput, {0, 4}, batch);
}

// Reads the per-row arrays from the fuzzer's input: rewards, baselines, groups and runs. Some rewards and
// some baselines are equal.
void read_rows(Bytes& in, Random& random, Values values, Call* call) {
  const int64_t rows = call->batch.view.layout.rows;
  const int shift = in.byte();
  call->rewards = Array<double>(rows, shift);
  call->baselines = Array<double>(rows, shift);
  call->groups = Array<int32_t>(rows, shift);
  call->runs = Array<int32_t>(rows, shift);
  const int64_t different = 1 + in.below(5);
  const bool close_together = in.flag();
  const int64_t group_count = 1 + rows / (1 + in.below(16));
  const int64_t oddities = 1 + in.byte();
  for (int64_t row = 0; row < rows; ++row) {
    for (Array<double>* numbers : {&call->rewards, &call->baselines}) {
      const uint64_t bits = random.next();
      double x = static_cast<double>(random.below(different)) / 10;
      if (random.below(8) == 0) x = random.between(-kMostAdvantage, kMostAdvantage);
      if (values == kAny && random.below(oddities) == 0) std::memcpy(&x, &bits, sizeof x);
      (*numbers)[row] = x;
    }
    const int64_t group = random.below(group_count);
    call->groups[row] =
        close_together ? static_cast<int32_t>(group - 3) : static_cast<int32_t>(group * 0x9e3779b1);
    call->runs[row] =
        close_together ? static_cast<int32_t>(random.below(3)) : static_cast<int32_t>(random.next());
  }
}

void read_wanted(Bytes& in, Random& random, const AdvantageInfo& info, Wanted* wanted) {
  const int bits = in.byte();
  const bool in_groups = info.shape == AdvantageShape::kGroup;
  wanted->scores = in_groups && (bits & 1) != 0;
  wanted->repeats = in_groups && (bits & 2) != 0;
  wanted->advantages = !wanted->scores || (bits & 4) != 0;
  const bool has_returns =
      info.shape == AdvantageShape::kRecurrence || info.shape == AdvantageShape::kBaseline;
  wanted->returns = has_returns && (bits & 8) != 0;
  wanted->spreads = info.shape == AdvantageShape::kRecurrence && info.name != "remax";
  wanted->shift = bits >> 4;
  wanted->seed = random.next();
}

void check(const Call& call, const AdvantageInfo& info, Values values, const Outcome& outcome) {
  if (values == kOrdinary) {
    require(outcome.is_finite(), "ordinary numbers are finite");
    require(all_finite(outcome.advantages) && all_finite(outcome.returns) && all_finite(outcome.scores) &&
                all_finite(outcome.values),
            "finite advantages");
  }
  const bool zeroes_masked = info.shape != AdvantageShape::kRecurrence || info.name == "reinforceplusplus" ||
                             info.name == "verl/reinforce_plus_plus";
  if (!zeroes_masked || !call.wanted.advantages || !outcome.is_finite()) return;
  for (int64_t i = 0; i < call.batch.tokens; ++i)
    require(call.batch.mask[i] != 0 || float32_bits(outcome.advantages[i]) == 0,
            "no advantage under the mask");
}

// Requires that numbers of tokens, or the spread over all rows, do the same if they are given as if they are
// measured.
void check_given(Call* call, const Outcome& expected) {
  const Layout& layout = call->batch.view.layout;
  const AdvantageBatch inputs = call->inputs;
  const Wanted wanted = call->wanted;
  const int64_t rows = layout.rows;
  Array<double> row_tokens(rows);
  for (int64_t row = 0; row < rows; ++row) {
    row_tokens[row] = 0;
    for (int64_t i = 0; i < layout.length(row); ++i)
      row_tokens[row] += call->batch.mask[layout.begin(row) + i] != 0 ? 1 : 0;
  }
  call->inputs.row_tokens = row_tokens.data();
  Spread all;
  if (wanted.spreads && expected.is_finite()) {
    cpu::add_spreads(expected.spreads.data(), rows, &all);
    call->inputs.spread = &all;
  }
  call->wanted.spreads = false;
  const Outcome given = compute(*call, kHere, nullptr);
  call->inputs = inputs;
  call->wanted = wanted;
  require(given.is_finite() == expected.is_finite(), "a part is as finite as the whole");
  if (!expected.is_finite()) return;
  require(given.advantages.same_bits(expected.advantages) && given.returns.same_bits(expected.returns) &&
              given.scores.same_bits(expected.scores) && given.values.same_bits(expected.values),
          "given spreads and tokens do the same as measured ones");
}

}  // namespace

void fuzz_advantages(Bytes& in) {
  const AdvantageInfo& info = advantages()[in.below(static_cast<int>(advantages().size()))];
  const bool in_groups = info.shape == AdvantageShape::kGroup;
  subject = "advantages of " + info.name;
  Call call;
  Batch& batch = call.batch;
  read_layout(in, false, &batch);
  Random random(in.word());
  read_mask(in, random, &batch);
  const Values values = in.below(3) == 2 ? kAny : kOrdinary;
  call.function = {info.shape, info.index, read_options(in, values, info.options)};
  const bool token_rewards = in.flag();
  read_columns(in, random, values, token_rewards, &batch);
  read_rows(in, random, values, &call);
  call.inputs.tokens = batch.view;
  // Decides whether the batch has rewards per row. Distillation reads none. Other functions can do without
  // them if the batch has rewards per token, except functions on groups.
  const bool by_row = info.shape != AdvantageShape::kDistill && (!token_rewards || in.flag() || in_groups);
  call.inputs.rewards = by_row ? call.rewards.data() : nullptr;
  call.inputs.baselines = call.baselines.data();
  call.inputs.groups = call.groups.data();
  call.inputs.runs = info.name == "step_wise_grpo" ? call.runs.data() : nullptr;
  read_wanted(in, random, info, &call.wanted);

  const auto at = [&](Where where, const int32_t* abort = nullptr) { return compute(call, where, abort); };
  const Outcome expected = at(kHere);
  for (const Where where : {kOneThread, kTwoThreads})
    require(at(where).same_bits(expected), "the same bits on the pool's threads");
  check(call, info, values, expected);
  check_given(&call, expected);

  // Sums of rewards and recurrences include the values of masked tokens, as in the implementations that they
  // follow. So these values are not disturbed, except the rewards of functions that ignore them.
  unsigned unseen = reads(kOldLogprobInput) | reads(kTeacherLogprobInput) | reads(kSumPiSquaredInput) |
                    reads(kRolloutIsWeightsInput);
  if (info.name == "remax" || info.name == "verl/gae" || info.name == "verl/reinforce_plus_plus" ||
      info.shape == AdvantageShape::kBaseline)
    unseen |= reads(kTokenLevelRewardsInput);
  disturb(random, unseen, false, false, &batch);
  require(at(kTwoThreads).same_bits(expected), "values under the mask do not matter");

  const int32_t flag = 1;
  at(in.flag() ? kHere : kTwoThreads, &flag);
}

}  // namespace fuzz

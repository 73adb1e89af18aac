// Fuzzes evaluations. An evaluation computes a policy loss, a KL loss and an entropy loss, or some of them.
#include "engine/function.h"
#include "math/half.h"
#include "test/fuzz/options.h"
#include "test/fuzz/programs.h"
#include "test/fuzz/targets.h"
#include "test/fuzz/tasks.h"

namespace fuzz {
namespace {

// The results that a call is to compute. `shift` is the number of elements by which their memory is
// misaligned (see Array). It is also the number of rows for which reused memory is made.
struct Wanted {
  bool grad, grad_entropy, counts;
  int shift;
};

// A call to test, which the fuzzer's input describes.
struct Call {
  Function function;
  Batch batch;
  Values values = kOrdinary;
  Coefficients coefficients;
  Normalizer normalizer;
  Wanted wanted{};

  bool is_program() const { return function.loss == kProgram; }
  bool has_pairs() const { return function.has_loss() && info_of(function)->traits.by_pairs; }
};

struct Outcome {
  Array<float> grad, grad_entropy;
  Array<double> values, counts;
  uint64_t present = 0;

  bool same_bits(const Outcome& other) const {
    return present == other.present && values.same_bits(other.values) && counts.same_bits(other.counts) &&
           grad.same_bits(other.grad) && grad_entropy.same_bits(other.grad_entropy);
  }
};

Outcome evaluate(const Call& call, const std::shared_ptr<const PreparedFunction>& function, Where where,
                 const int32_t* abort) {
  Outcome outcome;
  Outputs outputs;
  const int shift = call.wanted.shift;
  outcome.values = to_be_written<double>(function->values(), where, shift);
  outputs.values = outcome.values.data();
  if (call.wanted.grad) {
    outcome.grad = to_be_written<float>(call.batch.tokens, where, shift);
    outputs.grad = outcome.grad.data();
  }
  if (call.wanted.grad_entropy) {
    outcome.grad_entropy = to_be_written<float>(call.batch.tokens, where, shift);
    outputs.grad_entropy = outcome.grad_entropy.data();
  }
  if (call.wanted.counts) {
    outcome.counts = to_be_written<double>(kCounts, where, shift);
    outputs.counts = outcome.counts.data();
  }
  const auto task = std::make_shared<cpu::Evaluation>(function, call.batch.view, call.coefficients,
                                                      call.normalizer, outputs);
  task->set_abort_flag(abort);
  perform(where, task);
  require(task->aborted() == (abort != nullptr), "an aborted call reports it");
  outcome.present = task->outputs().present;
  return outcome;
}

// Counts the tokens and rows of a batch with simple loops. The engine must find the same counts.
BatchCounts count(const Batch& batch) {
  BatchCounts counts;
  const Layout& layout = batch.view.layout;
  counts.row_length = static_cast<double>(layout.row_length);
  for (int64_t row = 0; row < layout.rows; ++row) {
    const int kind = batch.view.kind(row);
    const double repeats = batch.view.repeats_of(row);
    counts.rows[kind] += repeats;
    for (int64_t i = layout.begin(row); i < layout.begin(row) + layout.length(row); ++i)
      counts.tokens[kind] += batch.mask[i] != 0 ? repeats : 0;
  }
  return counts;
}

Aggregation read_aggregation(Bytes& in) {
  return static_cast<Aggregation>(in.below(4));
}

// Reads the settings of the function from the fuzzer's input. Its loss has already been chosen.
void read_function(Bytes& in, Call* call) {
  Function& function = call->function;
  const int estimators = static_cast<int>(kl_estimators().size());
  if (function.has_loss()) function.options = read_options(in, call->values, info_of(function)->options);
  function.loss_aggregation[0] = read_aggregation(in);
  function.loss_aggregation[1] = read_aggregation(in);
  function.kl = in.below(2 * estimators) - estimators;
  if (function.kl < 0) function.kl = kNone;
  function.kl_aggregation = read_aggregation(in);
  function.entropy = in.flag();
  function.entropy_of_usual_rows_only = in.flag();
  function.entropy_aggregation = read_aggregation(in);
  function.weighted = function.loss >= 0 && in.flag();
}

// Reads the per-row arrays from the fuzzer's input: which rows are an expert's, and how often each row
// counts.
void read_rows(Bytes& in, Random& random, Batch* batch) {
  const int64_t rows = batch->view.layout.rows;
  if (in.flag()) {
    batch->expert = Array<uint8_t>(rows, in.byte());
    for (uint8_t& x : batch->expert) x = static_cast<uint8_t>(random.below(2) * (1 + random.below(255)));
    batch->view.expert = batch->expert.data();
  }
  if (in.below(3) == 0) {
    const int most = in.byte();
    batch->repeats = Array<uint32_t>(rows, in.byte());
    for (uint32_t& x : batch->repeats)
      x = most == 255 ? static_cast<uint32_t>(random.next())
                      : static_cast<uint32_t>(random.below(most % 4 + 1));
    batch->view.repeats = batch->repeats.data();
  }
}

// What the values of a column lie between, and whether they may be near the log-probabilities.
struct Range {
  double low, high;
  enum { kApart, kMayBeNear, kNear } place = kApart;
};

Range range_of(unsigned column) {
  switch (static_cast<Column>(column)) {
    case kLogprob:
      return {kLeastLogprob, 0};
    case kOldLogprob:
    case kRefLogprob:
      return {kLeastLogprob, 0, Range::kMayBeNear};
    case kRolloutLogprob:
    case kProxLogprob:
    case kTeacherLogprob:
      return {kLeastLogprob, 0, Range::kNear};
    case kAdvantages:
      return {-kMostAdvantage, kMostAdvantage};
    case kEntropy:
    case kOldEntropy:
      return {0, 20};
    case kClipCovKeys:
      return {0, 1};
    case kTokenWeights:
      return {0, 5};
  }
  __builtin_unreachable();
}

void read_columns(Bytes& in, Random& random, Call* call) {
  for (unsigned c = 0; c < kColumns; ++c) {
    if ((columns_of(call->function) & reads(c)) == 0) continue;
    const Range range = range_of(c);
    const bool near = range.place == Range::kNear || (range.place == Range::kMayBeNear && in.flag());
    read_column(in, random, call->values, static_cast<int>(c),
                {range.low, range.high, near ? &call->batch : nullptr, kLogprob, true}, &call->batch);
  }
}

// Reads the counts of a larger batch from the fuzzer's input. The tested batch is a part of that larger
// batch.
void read_normalizer(Bytes& in, Call* call) {
  Normalizer& normalizer = call->normalizer;
  normalizer.given = in.below(3) == 0;
  if (!normalizer.given) return;
  normalizer.counts = count(call->batch);
  for (int kind = 0; kind < 2; ++kind) {
    normalizer.counts.tokens[kind] += in.below(1000);
    normalizer.counts.rows[kind] += in.below(100);
  }
  normalizer.counts.row_length += in.byte();
}

void check(const Call& call, const Outcome& outcome) {
  const Batch& batch = call.batch;
  if (call.wanted.counts) {
    double numbers[kCounts];
    write_counts(count(batch), numbers);
    require(std::memcmp(numbers, outcome.counts.data(), sizeof numbers) == 0, "the batch's own counts");
  }
  const Layout& layout = batch.view.layout;
  for (int64_t row = 0; row < layout.rows; ++row)
    for (int64_t i = layout.begin(row); i < layout.begin(row) + layout.length(row); ++i) {
      if (batch.mask[i] != 0 && batch.counts(row)) continue;
      require(!call.wanted.grad || float32_bits(outcome.grad[i]) == 0, "no gradient under the mask");
      require(!call.wanted.grad_entropy || float32_bits(outcome.grad_entropy[i]) == 0,
              "no gradient of entropy under the mask");
    }
  // A program may overflow or divide by 0.
  if (call.values != kOrdinary || call.is_program()) return;
  require(all_finite(outcome.grad) && all_finite(outcome.grad_entropy), "a finite gradient");
  for (int64_t i = 0; i < outcome.values.size(); ++i)
    require((outcome.present >> i & 1) == 0 || std::isfinite(outcome.values[i]), "finite values");
}

bool is_rounded(uint16_t bits, float full, DType dtype) {
  const bool is_half = dtype == DType::kFloat16;
  if (std::isnan(full)) return std::isnan(is_half ? float_of_half(bits) : float_of_bfloat16(bits));
  return bits == (is_half ? half_of_float(full) : bfloat16_of_float(full));
}

// Evaluates the call once more, with gradients in 16 bits.
void check_halves(const Call& call, const std::shared_ptr<const PreparedFunction>& function,
                  const Outcome& full) {
  const int shift = call.wanted.shift;
  const DType dtype = shift % 2 == 0 ? DType::kFloat16 : DType::kBFloat16;
  Outputs outputs;
  Array<double> values = to_be_written<double>(function->values(), kTwoThreads, shift);
  outputs.values = values.data();
  Array<uint16_t> grad = to_be_written<uint16_t>(full.grad.size(), kTwoThreads, shift);
  if (call.wanted.grad) outputs.grad = {grad.data(), dtype};
  Array<uint16_t> grad_entropy = to_be_written<uint16_t>(full.grad_entropy.size(), kTwoThreads, shift);
  if (call.wanted.grad_entropy) outputs.grad_entropy = {grad_entropy.data(), dtype};
  perform(kTwoThreads, std::make_shared<cpu::Evaluation>(function, call.batch.view, call.coefficients,
                                                         call.normalizer, outputs));
  require(values.same_bits(full.values), "the same values with gradients in 16 bits");
  for (int64_t i = 0; i < grad.size(); ++i)
    require(is_rounded(grad[i], full.grad[i], dtype), "the rounded gradient");
  for (int64_t i = 0; i < grad_entropy.size(); ++i)
    require(is_rounded(grad_entropy[i], full.grad_entropy[i], dtype), "the rounded gradient of entropy");
}

// Evaluates the call once more on the pool's threads, although memory is scarce.
void check_scarcity(const Call& call, const std::shared_ptr<const PreparedFunction>& function,
                    int64_t allocations, const Outcome& expected) {
  Outputs outputs;
  Array<double> values = to_be_written<double>(function->values(), kTwoThreads, 0);
  outputs.values = values.data();
  Array<float> grad = to_be_written<float>(expected.grad.size(), kTwoThreads, 0);
  if (call.wanted.grad) outputs.grad = grad.data();
  const auto task = std::make_shared<cpu::Evaluation>(function, call.batch.view, call.coefficients,
                                                      call.normalizer, outputs);
  {
    const Scarcity scarcity(allocations);
    perform(kTwoThreads, task);
  }
  if (task->out_of_memory()) return;
  require(values.same_bits(expected.values), "the same values although memory is scarce");
  require(grad.same_bits(expected.grad), "the same gradient although memory is scarce");
}

}  // namespace

void fuzz_evaluation(Bytes& in, bool of_program) {
  Call call;
  Function& function = call.function;
  if (of_program) {
    function.loss = kProgram;
    function.program_loss = read_program_loss(in);
  } else {
    function.loss = in.below(static_cast<int>(losses().size()) + 1) - 1;
  }
  read_layout(in, call.has_pairs(), &call.batch);
  Random random(in.word());
  read_mask(in, random, &call.batch);
  call.values = in.below(3) == 2 ? kAny : kOrdinary;
  read_function(in, &call);
  subject = (function.has_loss() ? info_of(function)->name : "no loss") + ", KL estimator " +
            (function.has_kl() ? kl_estimators()[function.kl].name : "none");
  read_rows(in, random, &call.batch);
  read_columns(in, random, &call);
  call.coefficients.mu = in.between(0, 1);
  call.coefficients.kl = in.between(-1, 1);
  call.coefficients.entropy = in.between(-1, 1);
  read_normalizer(in, &call);
  const int wanted = in.byte();
  call.wanted = {(wanted & 1) == 0, (wanted & 2) != 0, (wanted & 4) != 0, wanted >> 3};

  const auto prepared = std::make_shared<const PreparedFunction>(function);
  const auto at = [&](Where where, const int32_t* abort = nullptr) {
    return evaluate(call, prepared, where, abort);
  };
  const Outcome expected = at(kHere);
  for (const Where where : {kOneThread, kTwoThreads})
    require(at(where).same_bits(expected), "the same bits on the pool's threads");
  check(call, expected);
  check_halves(call, prepared, expected);

  // A loss over pairs reads rows even if they count 0 times, so these rows are not disturbed. One metric of
  // ppo_sequence_masking counts masked tokens with negative advantages, so their signs are kept.
  const bool keep_signs = function.has_loss() && info_of(function)->name.starts_with("ppo_sequence_masking");
  disturb(random, ~0u, !call.has_pairs(), keep_signs, &call.batch);
  require(at(kTwoThreads).same_bits(expected), "values under the mask do not matter");

  const int32_t flag = 1;
  at(in.flag() ? kHere : kTwoThreads, &flag);
  check_scarcity(call, prepared, random.below(12), expected);
}

}  // namespace fuzz

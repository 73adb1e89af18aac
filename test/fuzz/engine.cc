// Fuzzes the CPU engine with libFuzzer. An input's bytes become a function of the registry with options, a
// batch of any layout, dtype and mask, and what is asked for. Whatever they are, nothing may be read or
// written out of bounds (AddressSanitizer) or be undefined (UndefinedBehaviorSanitizer), and
//
// - results have the same bits on the calling thread alone, in fresh memory and in used, on the pool with one
// thread
//   and with two;
// - every element that is asked for is written;
// - what lies under the mask, or in rows that count 0 times, is not seen: other values there change no bit,
// and the
//   gradient there is 0;
// - ordinary inputs (see kOrdinary) give finite results;
// - a call that is called off says so.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cpu/advantages.h"
#include "cpu/engine.h"
#include "test/fuzz/input.h"

using namespace policy_loss;
using fuzz::Array;
using fuzz::Bytes;
using fuzz::Random;

namespace {

std::string subject;  // what is computed, for the report

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s: %s\n", subject.c_str(), what);
  std::abort();
}

// ---- Batches ----

// Whether values are those of a training run or any bits at all. Ordinary log-probabilities are from −40 to
// 0, so that e^d times an advantage is far from float32's largest number; advantages and rewards are up to
// 1000 either way.
enum Values { kOrdinary, kAny };

constexpr double kLeastLogprob = -40;
constexpr double kMostAdvantage = 1000;

// The same memory holds a loss's columns or an advantage function's.
struct Data {
  BatchView view;
  Array<int32_t> offsets;
  Array<uint32_t> wide[kColumns];  // bits of float32
  Array<uint16_t> half[kColumns];  // of float16 and bfloat16
  Array<uint8_t> mask, expert;
  Array<uint32_t> copies;
  int64_t tokens = 0;

  bool counts(int64_t row) const { return view.repeats_of(row) != 0; }

  // The bits of any value that the dtype has.
  void set_bits(int column, int64_t i, uint32_t bits) {
    if (view.column[column].dtype == DType::kFloat32)
      wide[column][i] = bits;
    else
      half[column][i] = static_cast<uint16_t>(bits);
  }
};

uint32_t float32_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Rounded towards zero; what is too small for float16's normal numbers becomes 0.
uint32_t bits_of(float x, DType dtype) {
  const uint32_t bits = float32_bits(x);
  if (dtype == DType::kFloat32) return bits;
  if (dtype == DType::kBFloat16) return bits >> 16;
  const uint32_t sign = bits >> 16 & 0x8000;
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127;
  return exponent < -14 ? sign : sign | static_cast<uint32_t>(exponent + 15) << 10 | (bits >> 13 & 0x3ff);
}

bool is_negative(const Data& data, int column, int64_t i) {
  const bool is_wide = data.view.column[column].dtype == DType::kFloat32;
  const uint32_t bits = is_wide ? data.wide[column][i] : static_cast<uint32_t>(data.half[column][i]) << 16;
  const uint32_t infinity = data.view.column[column].dtype == DType::kFloat16 ? 0x7c000000 : 0x7f800000;
  return bits > 0x80000000 && bits <= (0x80000000 | infinity);
}

// Lengths about which blocks, tiles, chunks and parts of rows begin and end.
constexpr int32_t kLengths[] = {0,    1,    2,     63,    64,    65,    127,   1023,  1024,
                                1025, 2049, 16383, 16384, 16385, 32767, 32768, 32769, 49153};
constexpr int kLengthCount = sizeof kLengths / sizeof kLengths[0];
constexpr int kShortLengths = 11;

// even: an even number of rows.
void read_layout(Bytes& in, bool even, Data* data) {
  Layout& layout = data->view.layout;
  std::vector<int32_t> lengths;
  const int form = in.below(8);
  if (form < 2) {  // padded and small
    layout.rows = in.below(9);
    layout.row_length = in.below(80);
  } else if (form == 2) {  // padded, about the ends of things
    layout.rows = in.below(3);
    layout.row_length = kLengths[in.below(kLengthCount)];
  } else if (form == 3) {  // padded, chunks of many rows
    layout.rows = in.below(4000);
    layout.row_length = in.below(13);
  } else {
    // Packed; of the last form a row in the middle may be long.
    layout.rows = in.below(form < 6 ? 12 : 5);
    for (int64_t row = 0; row < layout.rows + 1; ++row) {
      const bool is_long = form == 7 && row == 1;
      const int first = is_long ? kShortLengths : 0;
      const int count = is_long ? kLengthCount - kShortLengths : kShortLengths;
      lengths.push_back(form < 6 ? in.below(140) : kLengths[first + in.below(count)]);
    }
  }
  if (even) layout.rows = layout.rows / 2 * 2;
  if (form >= 4) {
    data->offsets = Array<int32_t>(layout.rows + 1, in.byte());
    data->offsets[0] = 0;
    for (int64_t row = 0; row < layout.rows; ++row) {
      data->offsets[row + 1] = data->offsets[row] + lengths[row];
      layout.row_length = std::max<int64_t>(layout.row_length, lengths[row]);
    }
    layout.offsets = data->offsets.data();
  }
  data->tokens = layout.tokens();
}

void read_mask(Bytes& in, Random& random, Data* data) {
  const Layout& layout = data->view.layout;
  data->mask = Array<uint8_t>(data->tokens, in.byte());
  const int form = in.below(5);
  const int64_t odds = 1 + in.below(8);
  for (int64_t row = 0; row < layout.rows; ++row) {
    const int64_t length = layout.length(row);
    const int64_t prompt = random.below(length + 1), end = random.below(length + 1);
    const bool empty = random.below(3) == 0;
    for (int64_t i = 0; i < length; ++i) {
      bool unmasked = false;
      if (form == 0) unmasked = true;
      if (form == 1) unmasked = i >= prompt;
      if (form == 2) unmasked = i < end && !empty;
      if (form == 3) unmasked = random.below(odds + 1) != 0;
      data->mask[layout.begin(row) + i] =
          unmasked ? static_cast<uint8_t>(1 + random.below(random.below(4) == 0 ? 255 : 1)) : 0;
    }
  }
  data->view.mask = data->mask.data();
}

// Values that most tokens have not and some losses look for.
float special(Random& random, double low, double high) {
  switch (random.below(6)) {
    case 0:
      return -0.0f;
    case 1:
      return 1e-41f * static_cast<float>(low < 0 ? -1 : 1);
    case 2:
      return static_cast<float>(low);
    case 3:
      return static_cast<float>(high);
    case 4:
      return static_cast<float>(low) * 1e-7f;
    default:
      return 0.0f;
  }
}

// A column of numbers from low to high, or about another column that is as close as wanted.
void read_column(Bytes& in, Random& random, Values values, int column, double low, double high,
                 const Data* about, int about_column, bool may_be_per_row, Data* data) {
  ColumnView& view = data->view.column[column];
  const int form = in.byte();
  view.dtype = static_cast<DType>(form % 4 % 3);
  view.per_row = may_be_per_row && form / 4 % 4 == 0;
  const double spread = std::exp2(-static_cast<double>(form / 16));
  const int64_t specials = 1 + in.below(64);
  const int64_t size = view.per_row ? data->view.layout.rows : data->tokens;
  const int shift = in.byte();
  if (view.dtype == DType::kFloat32)
    data->wide[column] = Array<uint32_t>(size, shift);
  else
    data->half[column] = Array<uint16_t>(size, shift);
  view.data = view.dtype == DType::kFloat32 ? static_cast<const void*>(data->wide[column].data())
                                            : data->half[column].data();
  const bool beside = about && about->view.column[about_column].dtype == DType::kFloat32 &&
                      about->wide[about_column].size() == size;
  for (int64_t i = 0; i < size; ++i) {
    if (values == kAny && random.below(specials) == 0) {
      data->set_bits(column, i, static_cast<uint32_t>(random.next()));
      continue;
    }
    float x = static_cast<float>(low < 0 && high > 0 ? random.between(low, high) * spread
                                                     : (high == 0 ? low : high) * random.unit() * spread);
    if (beside) {
      float center;
      std::memcpy(&center, &about->wide[about_column][i], sizeof center);
      x = static_cast<float>(center + random.between(-1, 1) * spread);
      if (!(x >= low)) x = static_cast<float>(low);
      if (x > high) x = static_cast<float>(high);
    }
    if (random.below(specials) == 0) x = special(random, low, high);
    data->set_bits(column, i, bits_of(x, view.dtype));
  }
}

// Other values, whatever bits, where nothing may see them. keep_signs: of advantages, which of them are
// negative.
void disturb(Random& random, unsigned columns, bool rows_that_do_not_count, bool keep_signs, Data* data) {
  const Layout& layout = data->view.layout;
  for (int64_t row = 0; row < layout.rows; ++row) {
    const bool whole = rows_that_do_not_count && !data->counts(row);
    const int64_t begin = layout.begin(row);
    for (int64_t i = begin; i < begin + layout.length(row); ++i) {
      if (data->mask[i] != 0 && !whole) continue;
      for (int column = 0; column < kColumns; ++column) {
        const ColumnView& view = data->view.column[column];
        if ((columns >> column & 1) == 0 || !view.data || view.per_row) continue;
        uint32_t bits = static_cast<uint32_t>(random.next());
        if (random.below(2) == 0)
          bits = bits_of(random.below(2) == 0 ? 1e4f : -1e4f, view.dtype) | (bits & 3);
        if (keep_signs && column == kAdvantages && !whole)
          bits = bits_of(is_negative(*data, column, i) ? -7.0f : 7.0f, view.dtype);
        data->set_bits(column, i, bits);
      }
    }
  }
}

// ---- Options ----

double ordinary_option(Bytes& in, const std::string& name) {
  const auto is = [&](std::initializer_list<const char*> names) {
    for (const char* one : names)
      if (name == one) return true;
    return false;
  };
  if (is({"enable_mask_clip", "differentiate_gate", "use_dynamic_bsz", "pairwise", "duplicate_experiences",
          "enable_step_norm", "std_normalize"}))
    return in.flag();
  if (is({"gamma", "lam", "lambda_coef", "label_smoothing", "rank_penalty"})) {
    const double ends[] = {0, 1, in.between(0, 1)};
    return ends[in.below(3)];
  }
  if (is({"std_threshold"})) return in.flag() ? NAN : in.between(0, 2);
  if (is({"ngpus_trainer"})) return 1 + in.below(2);
  if (is({"ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu", "train_batch_size_usual",
          "train_batch_size_expert"}))
    return 2 + in.below(64);
  if (is({"temp"})) return in.between(kMostAdvantage / 40, kMostAdvantage);  // e^(A/temp) stays a number
  if (is({"baseline_shift", "advantage_threshold", "regularizer_coef", "kl_coef", "delta_sequence_masking"}))
    return in.between(-2, 2);
  if (is({"clip_ratio_c"})) return in.between(1.01, 20);
  return std::exp2(in.between(-6, 2));
}

std::vector<double> read_options(Bytes& in, Values values, const std::vector<OptionInfo>& options) {
  std::vector<double> result;
  for (const OptionInfo& option : options) {
    int choices = 0;
    while (option.choices && option.choices[choices]) ++choices;
    if (choices > 0) {
      result.push_back(in.below(choices));
    } else if (values == kAny && in.below(4) == 0) {
      const double odd[] = {0, -1, 1e300, -1e300, INFINITY, -INFINITY, NAN, 1e-300};
      result.push_back(odd[in.below(8)]);
    } else {
      result.push_back(ordinary_option(in, option.name));
    }
  }
  return result;
}

// ---- What is the same for all tasks ----

// kReused: on the calling thread, in memory that another evaluation has left.
enum Where { kHere, kReused, kOneThread, kTwoThreads };

template <class Task>
void perform(Where where, const std::shared_ptr<Task>& task) {
  if (where == kHere || where == kReused) {
    cpu::run_here(*task);
    return;
  }
  cpu::Pool::shared().set_threads(where == kOneThread ? 1 : 2);
  cpu::Pool::shared().run(task);
}

// What is not overwritten differs from one place to another.
template <class T>
Array<T> to_be_written(int64_t size, Where where, int shift) {
  Array<T> array(size, shift);
  for (T& x : array) x = static_cast<T>(40 + where);
  return array;
}

template <class T>
bool all_finite(const Array<T>& numbers) {
  bool finite = true;
  for (const T& x : numbers) finite = finite && std::isfinite(x);
  return finite;
}

// ---- Losses, KL losses and entropy losses ----

struct Asked {
  bool grad, grad_entropy, counts;
  int shift;
};

struct Outcome {
  Array<float> grad, grad_entropy;
  Array<double> values, counts;
  uint32_t present = 0;

  bool same_bits(const Outcome& other) const {
    return present == other.present && values.same_bits(other.values) && counts.same_bits(other.counts) &&
           grad.same_bits(other.grad) && grad_entropy.same_bits(other.grad_entropy);
  }
};

// As an evaluation of so many rows and chunks leaves it, with what it should not matter that it holds.
cpu::Workspace left_behind(size_t rows, size_t chunks) {
  cpu::Workspace workspace;
  workspace.chunks.assign(chunks, {7, 9, 3, 5});
  workspace.parts.assign(chunks, {11, 13.0, 17.0});
  Sums sums;
  sums.loss[0] = sums.metric[0] = sums.row_metric[0] = sums.kl = sums.entropy = 19;
  workspace.sums.assign(chunks, sums);
  workspace.row_tokens.assign(rows, 23);
  workspace.row_sums.assign(rows, 29.0);
  workspace.row_negatives.assign(rows, 31.0);
  return workspace;
}

Outcome evaluate(const std::shared_ptr<const PreparedFunction>& function, const Data& data,
                 const Coefficients& coefficients, const Normalizer& normalizer, const Asked& asked,
                 Where where, const int32_t* abort) {
  Outcome outcome;
  Outputs outputs;
  const int64_t values = static_cast<int64_t>(value_names(function->function()).size());
  outcome.values = to_be_written<double>(values, where, asked.shift);
  outputs.values = outcome.values.data();
  if (asked.grad) {
    outcome.grad = to_be_written<float>(data.tokens, where, asked.shift);
    outputs.grad = outcome.grad.data();
  }
  if (asked.grad_entropy) {
    outcome.grad_entropy = to_be_written<float>(data.tokens, where, asked.shift);
    outputs.grad_entropy = outcome.grad_entropy.data();
  }
  if (asked.counts) {
    outcome.counts = to_be_written<double>(kCounts, where, asked.shift);
    outputs.counts = outcome.counts.data();
  }
  const size_t left = static_cast<size_t>(asked.shift);
  const auto task =
      std::make_shared<cpu::Evaluation>(function, data.view, coefficients, normalizer, outputs,
                                        where == kReused ? left_behind(left, left / 2) : cpu::Workspace{});
  task->set_abort_flag(abort);
  perform(where, task);
  require(task->aborted() == (abort != nullptr), "a call that is called off says so");
  outcome.present = task->outputs().present;
  return outcome;
}

// As the engine should count them; a batch of which this one is a part has more.
BatchCounts count(const Data& data) {
  BatchCounts counts;
  counts.row_length = static_cast<double>(data.view.layout.row_length);
  const Layout& layout = data.view.layout;
  for (int64_t row = 0; row < layout.rows; ++row) {
    const int kind = data.view.kind(row);
    const double copies = data.view.repeats_of(row);
    counts.rows[kind] += copies;
    for (int64_t i = layout.begin(row); i < layout.begin(row) + layout.length(row); ++i)
      counts.tokens[kind] += data.mask[i] != 0 ? copies : 0;
  }
  return counts;
}

Aggregation read_aggregation(Bytes& in) {
  return static_cast<Aggregation>(in.below(4));
}

void fuzz_evaluation(Bytes& in) {
  Function function;
  const int loss_count = static_cast<int>(losses().size());
  const int kl_count = static_cast<int>(kl_estimators().size());
  function.loss = in.below(loss_count + 1) - 1;
  const bool pairs = function.loss != kNone && losses()[function.loss].traits.by_pairs;
  Data data;
  read_layout(in, pairs, &data);
  Random random(in.word());
  read_mask(in, random, &data);
  const Values values = in.below(3) == 2 ? kAny : kOrdinary;
  if (function.loss != kNone) function.options = read_options(in, values, losses()[function.loss].options);
  function.loss_aggregation[0] = read_aggregation(in);
  function.loss_aggregation[1] = read_aggregation(in);
  function.kl = in.below(2 * kl_count) - kl_count;
  if (function.kl < 0) function.kl = kNone;
  function.kl_aggregation = read_aggregation(in);
  function.entropy = in.flag();
  function.entropy_of_usual_rows_only = in.flag();
  function.entropy_aggregation = read_aggregation(in);
  subject = (function.loss == kNone ? "no loss" : losses()[function.loss].name) + ", KL estimator " +
            (function.kl == kNone ? "none" : kl_estimators()[function.kl].name);

  const int64_t rows = data.view.layout.rows;
  if (in.flag()) {
    data.expert = Array<uint8_t>(rows, in.byte());
    for (uint8_t& x : data.expert) x = static_cast<uint8_t>(random.below(2) * (1 + random.below(255)));
    data.view.expert = data.expert.data();
  }
  if (in.below(3) == 0) {
    const int most = in.byte();
    data.copies = Array<uint32_t>(rows, in.byte());
    for (uint32_t& x : data.copies)
      x = most == 255 ? static_cast<uint32_t>(random.next())
                      : static_cast<uint32_t>(random.below(most % 4 + 1));
    data.view.repeats = data.copies.data();
  }
  const unsigned columns = columns_of(function);
  const auto column = [&](Column c, double low, double high, bool about_logprob) {
    if ((columns & reads(c)) != 0)
      read_column(in, random, values, c, low, high, about_logprob ? &data : nullptr, kLogprob, true, &data);
  };
  column(kLogprob, kLeastLogprob, 0, false);
  column(kOldLogprob, kLeastLogprob, 0, in.flag());
  column(kRefLogprob, kLeastLogprob, 0, in.flag());
  column(kAdvantages, -kMostAdvantage, kMostAdvantage, false);
  column(kEntropy, 0, 20, false);

  const Coefficients coefficients{in.between(0, 1), in.between(-1, 1), in.between(-1, 1)};
  Normalizer normalizer;
  normalizer.given = in.below(3) == 0;
  if (normalizer.given) {
    normalizer.counts = count(data);
    for (int kind = 0; kind < 2; ++kind) {
      normalizer.counts.tokens[kind] += in.below(1000);
      normalizer.counts.rows[kind] += in.below(100);
    }
    normalizer.counts.row_length += in.byte();
  }
  const int wanted = in.byte();
  const Asked asked{(wanted & 1) == 0, (wanted & 2) != 0, (wanted & 4) != 0, wanted >> 3};

  const auto prepared = std::make_shared<const PreparedFunction>(function);
  const auto at = [&](Where where, const int32_t* abort = nullptr) {
    return evaluate(prepared, data, coefficients, normalizer, asked, where, abort);
  };
  const Outcome expected = at(kHere);
  require(at(kReused).same_bits(expected), "the same bits in memory that was used before");
  for (const Where where : {kOneThread, kTwoThreads})
    require(at(where).same_bits(expected), "the same bits on the pool's threads");

  if (asked.counts) {
    double numbers[kCounts];
    write_counts(count(data), numbers);
    require(std::memcmp(numbers, expected.counts.data(), sizeof numbers) == 0, "the batch's own counts");
  }
  const Layout& layout = data.view.layout;
  for (int64_t row = 0; row < layout.rows; ++row)
    for (int64_t i = layout.begin(row); i < layout.begin(row) + layout.length(row); ++i) {
      if (data.mask[i] != 0 && data.counts(row)) continue;
      require(!asked.grad || float32_bits(expected.grad[i]) == 0, "no gradient under the mask");
      require(!asked.grad_entropy || float32_bits(expected.grad_entropy[i]) == 0,
              "no gradient of entropy under the mask");
    }
  if (values == kOrdinary) {
    require(all_finite(expected.grad) && all_finite(expected.grad_entropy), "a finite gradient");
    for (int64_t i = 0; i < expected.values.size(); ++i)
      require((expected.present >> i & 1) == 0 || std::isfinite(expected.values[i]), "finite values");
  }

  // Sums over pairs are of all rows, and one metric counts negative advantages under the mask too.
  const bool keep_signs =
      function.loss != kNone && losses()[function.loss].name.starts_with("ppo_sequence_masking");
  disturb(random, ~0u, !pairs, keep_signs, &data);
  require(at(kTwoThreads).same_bits(expected), "nothing under the mask is seen");

  const int32_t flag = 1;
  at(in.flag() ? kHere : kTwoThreads, &flag);
}

// ---- KL values ----

void fuzz_kl_values(Bytes& in) {
  Function function;
  function.kl = in.below(static_cast<int>(kl_estimators().size()));
  subject = "values of " + kl_estimators()[function.kl].name;
  Data data;
  read_layout(in, false, &data);
  Random random(in.word());
  read_mask(in, random, &data);
  const Values values = in.below(3) == 2 ? kAny : kOrdinary;
  const bool with_base = in.flag();
  if (!with_base && in.flag()) data.view.mask = nullptr;
  for (const Column c : {kLogprob, kRefLogprob, kOldLogprob})
    if ((columns_of(function) & reads(c)) != 0)
      read_column(in, random, values, c, kLeastLogprob, 0, c == kLogprob || in.flag() ? nullptr : &data,
                  kLogprob, true, &data);
  const double scale = in.between(-2, 2);
  Array<float> base(with_base ? data.tokens : 0, in.byte());
  for (float& x : base) x = static_cast<float>(random.between(-kMostAdvantage, kMostAdvantage));

  const auto at = [&](Where where, double* mean) {
    Array<float> out = to_be_written<float>(data.tokens, where, static_cast<int>(scale + 2));
    const auto task = std::make_shared<cpu::KlEvaluation>(
        function.kl, data.view, with_base ? base.data() : nullptr, scale, out.data());
    perform(where, task);
    *mean = task->mean_kl();
    return out;
  };
  const auto same_bits = [](double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; };
  double mean = 0;
  const Array<float> expected = at(kHere, &mean);
  for (const Where where : {kOneThread, kTwoThreads}) {
    double again = 0;
    require(at(where, &again).same_bits(expected) && same_bits(again, mean),
            "the same bits on the pool's threads");
  }
  if (values == kOrdinary) require(all_finite(expected) && std::isfinite(mean), "finite values");
  if (!with_base) return;
  for (int64_t i = 0; i < data.tokens; ++i)
    require(data.mask[i] != 0 || float32_bits(expected[i]) == float32_bits(base[i]),
            "the base under the mask");
  disturb(random, ~0u, false, false, &data);
  double again = 0;
  require(at(kTwoThreads, &again).same_bits(expected) && same_bits(again, mean),
          "nothing under the mask is seen");
}

// ---- Advantages ----

struct Advantages {
  Array<float> advantages, returns, scores;
  Array<uint32_t> copies;
  Array<double> values;
  NonFiniteValue not_finite;

  bool same_bits(const Advantages& other) const {
    if (not_finite.input != other.not_finite.input || not_finite.row != other.not_finite.row) return false;
    return not_finite.input != NonFiniteInput::kNone ||
           (advantages.same_bits(other.advantages) && returns.same_bits(other.returns) &&
            scores.same_bits(other.scores) && copies.same_bits(other.copies) &&
            values.same_bits(other.values));
  }
};

struct AdvantagesAsked {
  bool advantages, returns, scores, copies;
  uint64_t seed;
  int shift;
};

Advantages advantages_at(const AdvantageFunction& function, const AdvantageBatch& batch, int64_t tokens,
                         const AdvantagesAsked& asked, Where where, const int32_t* abort) {
  Advantages result;
  AdvantageOutputs outputs;
  const int64_t rows = batch.tokens.layout.rows;
  const auto wanted = [&]<class T>(bool is, int64_t size, Array<T>* array, T** out) {
    if (!is) return;
    *array = to_be_written<T>(size, where, asked.shift);
    *out = array->data();
  };
  wanted(asked.advantages, tokens, &result.advantages, &outputs.advantages);
  wanted(asked.returns, tokens, &result.returns, &outputs.returns);
  wanted(asked.scores, rows, &result.scores, &outputs.scores);
  wanted(asked.copies, rows, &result.copies, &outputs.repeats);
  wanted(true, static_cast<int64_t>(advantage_value_names(function).size()), &result.values, &outputs.values);
  double row = -1;
  const auto task = std::make_shared<cpu::AdvantageEvaluation>(function, batch, outputs, asked.seed, &row);
  task->set_abort_flag(abort);
  perform(where, task);
  require(task->aborted() == (abort != nullptr), "a call that is called off says so");
  require(!task->out_of_memory(), "there is memory");
  result.not_finite = task->not_finite();
  if (result.not_finite.input != NonFiniteInput::kNone)
    require(row == static_cast<double>(result.not_finite.row) && row >= 0 && row < static_cast<double>(rows),
            "the row of what is not finite");
  return result;
}

void fuzz_advantages(Bytes& in) {
  const AdvantageInfo& info = advantages()[in.below(static_cast<int>(advantages().size()))];
  const bool in_groups = info.shape == AdvantageShape::kGroup;
  subject = "advantages of " + info.name;
  Data data;
  read_layout(in, false, &data);
  Random random(in.word());
  read_mask(in, random, &data);
  const Values values = in.below(3) == 2 ? kAny : kOrdinary;
  const AdvantageFunction function{info.shape, info.index, read_options(in, values, info.options)};
  const int64_t rows = data.view.layout.rows;
  const bool token_rewards = in.flag();
  if (token_rewards)
    read_column(in, random, values, kTokenRewards, -kMostAdvantage, kMostAdvantage, nullptr, 0, false, &data);
  read_column(in, random, values, kSampledLogprob, kLeastLogprob, 0, nullptr, 0, false, &data);
  read_column(in, random, values, kTeacherLogprob, kLeastLogprob, 0, in.flag() ? &data : nullptr,
              kSampledLogprob, false, &data);
  read_column(in, random, values, kValues, -kMostAdvantage, kMostAdvantage, nullptr, 0, false, &data);

  const int shift = in.byte();
  Array<double> rewards(rows, shift), baselines(rows, shift);
  Array<int32_t> groups(rows, shift), runs(rows, shift);
  const int64_t kinds = 1 + in.below(5);
  const bool close_together = in.flag();
  const int64_t group_count = 1 + rows / (1 + in.below(16));
  const int64_t oddities = 1 + in.byte();
  for (int64_t row = 0; row < rows; ++row) {
    for (Array<double>* numbers : {&rewards, &baselines}) {
      const uint64_t bits = random.next();
      double x = static_cast<double>(random.below(kinds)) / 10;
      if (random.below(8) == 0) x = random.between(-kMostAdvantage, kMostAdvantage);
      if (values == kAny && random.below(oddities) == 0) std::memcpy(&x, &bits, sizeof x);
      (*numbers)[row] = x;
    }
    const int64_t group = random.below(group_count);
    groups[row] = close_together ? static_cast<int32_t>(group - 3) : static_cast<int32_t>(group * 0x9e3779b1);
    runs[row] = close_together ? static_cast<int32_t>(random.below(3)) : static_cast<int32_t>(random.next());
  }
  AdvantageBatch batch;
  batch.tokens = data.view;
  // A function whose rewards may come per token needs none per row beside them.
  const bool by_row = info.shape != AdvantageShape::kDistill && (!token_rewards || in.flag() || in_groups);
  batch.rewards = by_row ? rewards.data() : nullptr;
  batch.baselines = baselines.data();
  batch.groups = groups.data();
  batch.runs = info.name == "step_wise_grpo" ? runs.data() : nullptr;

  const int wanted = in.byte();
  AdvantagesAsked asked{};
  asked.scores = in_groups && (wanted & 1) != 0;
  asked.copies = in_groups && (wanted & 2) != 0;
  asked.advantages = !asked.scores || (wanted & 4) != 0;
  asked.returns = info.shape == AdvantageShape::kRecurrence && (wanted & 8) != 0;
  asked.shift = wanted >> 4;
  asked.seed = random.next();

  const auto at = [&](Where where, const int32_t* abort = nullptr) {
    return advantages_at(function, batch, data.tokens, asked, where, abort);
  };
  const Advantages expected = at(kHere);
  for (const Where where : {kOneThread, kTwoThreads})
    require(at(where).same_bits(expected), "the same bits on the pool's threads");
  if (values == kOrdinary) {
    require(expected.not_finite.input == NonFiniteInput::kNone, "ordinary numbers are finite");
    require(all_finite(expected.advantages) && all_finite(expected.returns) && all_finite(expected.scores) &&
                all_finite(expected.values),
            "finite advantages");
  }
  const bool masks = in_groups || info.shape == AdvantageShape::kDistill || info.name == "reinforceplusplus";
  for (int64_t i = 0;
       masks && asked.advantages && expected.not_finite.input == NonFiniteInput::kNone && i < data.tokens;
       ++i)
    require(data.mask[i] != 0 || float32_bits(expected.advantages[i]) == 0, "no advantage under the mask");

  // By specification, sums of rewards and recurrences run over all columns; but remax's is of unmasked
  // rewards.
  unsigned unseen = 1u << kSampledLogprob | 1u << kTeacherLogprob;
  if (info.name == "remax") unseen |= 1u << kTokenRewards;
  disturb(random, unseen, false, false, &data);
  require(at(kTwoThreads).same_bits(expected), "nothing under the mask is seen");

  const int32_t flag = 1;
  at(in.flag() ? kHere : kTwoThreads, &flag);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  Bytes in(bytes, size);
  const int kind = in.below(8);
  if (kind < 4)
    fuzz_evaluation(in);
  else if (kind == 4)
    fuzz_kl_values(in);
  else
    fuzz_advantages(in);
  return 0;
}

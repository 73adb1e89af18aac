#include "engine/function.h"

#include <algorithm>
#include <cmath>

#include "engine/registry.h"

namespace policy_loss {
namespace {

template <class L>
LossInfo describe() {
  static_assert(L::traits.token_metrics <= kMaxTokenMetrics && L::traits.row_metrics <= kMaxRowMetrics);
  LossInfo info;
  info.name = L::name;
  info.traits = L::traits;
  if constexpr (field_count<L>() > 0)
    for (const auto& field : L::fields) info.options.push_back({field.name, field.choices});
  for (const Metric& metric : L::metrics) info.metrics.push_back(metric);
  return info;
}

template <class... L>
std::vector<LossInfo> describe_all(TypeList<L...>) {
  return {describe<L>()...};
}

template <class... K>
std::vector<KlInfo> describe_estimators(TypeList<K...>) {
  return {{K::name, K::reads_old_logprob}...};
}

// Calls visit(loss), where `loss` is the function's loss object with its C++ type. Does nothing if the
// function has no loss.
template <class Visit, class... L>
void with_loss(const PreparedFunction& function, Visit visit, TypeList<L...>) {
  int index = 0;
  ((index++ == function.function().loss ? visit(*static_cast<const L*>(function.loss())) : void()), ...);
}

template <class... L>
void construct_loss(int index, const double* options, LossStorage* storage, TypeList<L...>) {
  int at = 0;
  ((at++ == index ? construct<L>(options, storage) : void()), ...);
}

double ratio(double sum, double count) {
  return count > 0 ? sum / count : 0.0;
}

// Returns the terms of a function as bits (see kPartLength).
double terms_of(const Terms& terms) {
  return (terms.has_loss() ? 1 : 0) + (terms.has_kl() ? 2 : 0) + (terms.entropy ? 4 : 0);
}

// The most values other than metrics of the whole batch: the total loss, the policy loss's metrics,
// entropy_loss, kl_loss and kl_coef. JavaScript receives the bits of `present` as a float64 number.
constexpr int kMaxValuesWithBit = 1 + kMaxMetrics + 3;
static_assert(kMaxValuesWithBit <= 53);

// Writes the values of a call one after another, and records which of them exist.
class ValueWriter {
 public:
  explicit ValueWriter(double* values) : values_(values) {}
  void put(double value, bool exists = true) {
    values_[next_] = exists ? value : NAN;
    if (exists) present_ |= uint64_t{1} << next_;
    ++next_;
  }
  // Writes a metric of the whole batch, for which there is no bit: it is NaN if it does not exist.
  void put_batch_metric(double value) { values_[next_++] = value; }
  uint64_t present() const { return present_; }

 private:
  double* const values_;
  int next_ = 0;
  uint64_t present_ = 0;
};

// The numbers from which the metrics of a policy loss are computed.
struct LossResults {
  const LossInfo& info;
  const BatchCounts& counts;
  const Sums& sums;
  const KindScales& scales;
  double total;  // the policy loss
  double mu;
};

void put_metric(const Metric& metric, const LossResults& from, ValueWriter* out) {
  const bool kinds = from.info.traits.two_kinds;
  const int kind = metric.kind;
  const Counts counts = kinds ? from.counts.of_kind(kind) : from.counts.all();
  const bool exists = !kinds || counts.rows > 0;
  switch (metric.source) {
    case Metric::kTokenMean:
      return out->put(from.sums.metric[metric.index] / (counts.tokens + 1e-8) * from.scales.metric[kind],
                      exists);
    case Metric::kRowMean:
      return out->put(ratio(from.sums.row_metric[metric.index], counts.rows));
    case Metric::kMeanOfRows:
      return out->put(ratio(from.sums.metric[metric.index], counts.rows));
    case Metric::kBatch:
      return;  // finish() writes it after the other values
    case Metric::kRowPerToken:
      return out->put(from.sums.row_metric[metric.index] / (counts.tokens + 1e-10));
    case Metric::kLoss:
      return out->put(kinds ? from.sums.loss[kind] * from.scales.metric[kind] : from.total, exists);
    case Metric::kPair:
      return out->put(from.sums.metric[metric.index]);
    case Metric::kTotal:
      return out->put(from.total);
    case Metric::kMu:
      return out->put(from.mu);
  }
}

// What a program computes: the instructions of its token segments, its passes over the tokens of a row, and
// its batch segments.
struct Effort {
  int instructions = 0, passes = 0, batch_segments = 0;

  explicit Effort(const program::ProgramView& program) {
    bool continues = false;  // whether the segment before is computed in the same pass
    for (int s = 0; s < program.segment_count; ++s) {
      const program::Segment& segment = program.segments[s];
      const bool of_tokens = segment.kind == program::Op::k_tokens;
      if (of_tokens) instructions += segment.last - segment.first;
      if (of_tokens && !continues) ++passes;
      if (segment.kind == program::Op::k_batch) ++batch_segments;
      continues = of_tokens;
    }
  }
};

// Returns whether a program with a gradient is faster than the one without it because its loops are compiled.
// Compiled loops take about two thirds of the interpreter's time for each instruction. A further pass over
// the tokens pays off only if much is computed. The results of parts can be merged only if the program has no
// more passes over the batch.
bool is_faster(const program::ProgramView& with_grad, const program::ProgramView& without_grad) {
  constexpr int kMany = 20;
  if (with_grad.interpreted > 0 || without_grad.interpreted == 0) return false;
  const Effort with(with_grad), without(without_grad);
  return with.batch_segments == without.batch_segments && 2 * with.instructions <= 3 * without.instructions &&
         (with.passes <= without.passes || with.instructions >= kMany);
}

}  // namespace

const std::vector<LossInfo>& losses() {
  static const std::vector<LossInfo> all = describe_all(Losses{});
  return all;
}

const std::vector<KlInfo>& kl_estimators() {
  static const std::vector<KlInfo> all = describe_estimators(KlEstimators{});
  return all;
}

ProgramLoss::ProgramLoss(program::Program grad, program::Program no_grad, std::vector<ProgramMetric> list)
    : with_grad(std::move(grad)),
      without_grad(std::move(no_grad)),
      always_with_grad(is_faster(with_grad.view(), without_grad.view())),
      metrics(std::move(list)) {
  info.traits.columns = with_grad.view().columns | without_grad.view().columns;
  int batch_metrics = 0;
  for (const ProgramMetric& metric : metrics) {
    int& next = metric.source == Metric::kBatch ? batch_metrics : info.traits.token_metrics;
    info.metrics.push_back({metric.name.c_str(), metric.source, next++});
  }
}

const LossInfo* info_of(const Function& function) {
  if (function.program_loss) return &function.program_loss->info;
  return function.has_loss() ? &losses()[function.loss] : nullptr;
}

unsigned columns_of(const Function& function) {
  unsigned columns = 0;
  if (const LossInfo* info = info_of(function))
    columns |= function.program_loss ? info->traits.columns : info->traits.all_columns();
  if (function.weighted) columns |= reads(kTokenWeights);
  if (function.has_kl()) {
    columns |= reads(kLogprob) | reads(kRefLogprob);
    if (kl_estimators()[function.kl].reads_old_logprob) columns |= reads(kOldLogprob);
  }
  if (function.entropy) columns |= reads(kEntropy);
  return columns;
}

PreparedFunction::PreparedFunction(Function function)
    : function_(std::move(function)), values_(static_cast<int64_t>(value_names(function_).size())) {
  construct_loss(function_.loss, function_.options.data(), &loss_, Losses{});
}

bool gradient_is_per_token(const PreparedFunction& function) {
  if (const program::Program* const program = function.program(true)) {
    const program::ProgramView& view = program->view();
    bool reads_tokens = view.scanned > 0 || view.gathered > 0 || view.has_batch_segment;
    for (int s = 0; s < view.output_segment; ++s)
      reads_tokens = reads_tokens || view.segments[s].kind != program::Op::k_row;
    return !reads_tokens;
  }
  bool sums = false;
  with_loss(
      function, [&](const auto& loss) { sums = needs_row_sums(loss); }, Losses{});
  return !sums;
}

KindScales kind_scales(const PreparedFunction& function, const BatchCounts& counts,
                       const Coefficients& coefficients) {
  KindScales scales;
  with_loss(
      function, [&](const auto& loss) { scales = kind_scales_of(loss, counts, coefficients.mu); }, Losses{});
  return scales;
}

void add_pairs(const PreparedFunction& function, int64_t rows, double pairs, double* row_sums,
               ExactSums* sums) {
  with_loss(
      function,
      [&]<class L>(const L& loss) {
        if constexpr (L::traits.by_pairs) {
          const auto add = [&](double* both) {
            double metric[kMaxTokenMetrics] = {};
            sums->add(ExactSums::kLoss, loss.pair_loss(pairs, both, metric));
            for (int k = 0; k < kMaxTokenMetrics; ++k) sums->add(ExactSums::kMetric + k, metric[k]);
          };
          if (loss.pairwise) {
            for (int64_t row = 0; row + 1 < rows; row += 2) add(row_sums + row);
            return;
          }
          double both[2] = {};
          for (int64_t row = 0; row < rows; ++row) both[row % 2] += row_sums[row];
          add(both);
          for (int64_t row = 0; row < rows; ++row) row_sums[row] = both[row % 2];
        }
      },
      Losses{});
}

std::vector<std::string> value_names(const Function& function) {
  std::vector<std::string> names{"loss"};
  const LossInfo* const info = info_of(function);
  const auto add_metrics = [&](bool of_batch) {
    if (!info) return;
    for (const Metric& metric : info->metrics)
      if ((metric.source == Metric::kBatch) == of_batch) names.push_back(metric.name);
  };
  add_metrics(false);
  if (function.entropy) names.push_back("entropy_loss");
  if (function.has_kl()) {
    names.push_back("kl_loss");
    names.push_back("kl_coef");
  }
  add_metrics(true);
  return names;
}

uint64_t finish(const PreparedFunction& function, const BatchCounts& counts, const Coefficients& coefficients,
                const Sums& sums, const double* batch_metrics, double* values) {
  const Function& f = function.function();
  ValueWriter out(values);
  out.put(0);  // reserves the first value for the total loss, which is known at the end
  double total = 0;
  const LossInfo* const info = function.info();
  if (info) {
    const KindScales scales = kind_scales(function, counts, coefficients);
    const double policy = sums.loss[0] * scales.loss[0] + sums.loss[1] * scales.loss[1];
    total += policy;
    const LossResults results{*info, counts, sums, scales, policy, coefficients.mu};
    for (const Metric& metric : info->metrics) put_metric(metric, results, &out);
  }
  if (f.entropy) {
    total += sums.entropy * coefficients.entropy;
    out.put(sums.entropy);
  }
  if (f.has_kl()) {
    total += mul_no_nan(sums.kl, coefficients.kl);
    out.put(sums.kl);
    out.put(coefficients.kl);
  }
  if (info)
    for (const Metric& metric : info->metrics)
      if (metric.source == Metric::kBatch)
        out.put_batch_metric(batch_metrics ? batch_metrics[metric.index] : NAN);
  values[0] = total;
  return out.present();
}

void write_part(const PreparedFunction& function, const ExactSums& sums, const Coefficients& coefficients,
                double* part) {
  sums.write(part);
  double* const after = part + kSums * kTermsOfSum;
  after[0] = coefficients.mu;
  after[1] = coefficients.kl;
  after[2] = coefficients.entropy;
  after[3] = terms_of(function.function());
}

int64_t merge(const PreparedFunction& function, const std::vector<const double*>& parts,
              const BatchCounts& counts, double* values) {
  constexpr int after_sums = kSums * kTermsOfSum;
  const double* const first = parts.front();
  if (first[kPartLength - 1] != terms_of(function.function())) return -1;
  ExactSums sums;
  for (const double* part : parts) {
    if (!std::equal(part + after_sums, part + kPartLength, first + after_sums)) return -1;
    sums.add(part);
  }
  const Coefficients coefficients{first[after_sums], first[after_sums + 1], first[after_sums + 2]};
  return finish(function, counts, coefficients, sums.rounded(), nullptr, values);
}

}  // namespace policy_loss

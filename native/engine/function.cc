#include "engine/function.h"

#include <cmath>

#include "engine/options.h"
#include "engine/registry.h"

namespace policy_loss {
namespace {

template <class L>
LossInfo describe() {
  LossInfo info;
  info.name = L::name;
  info.columns = L::columns | reads(kLogprob);
  info.kinds = has_kinds<L>;
  info.row_facts = has_row_facts<L>;
  info.pairs = is_by_pairs<L>;
  if constexpr (field_count < L >> 0)
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

// Calls visit with the loss itself, of whichever type it is.
template <class Visit, class... L>
void with_loss(const Function& function, Visit visit, TypeList<L...>) {
  int index = 0;
  ((index++ == function.loss ? visit(make_function<L>(function.options.data())) : void()), ...);
}

double ratio(double sum, double count) {
  return count > 0 ? sum / count : 0.0;
}

}  // namespace

void Sums::add(const Sums& other) {
  for (int i = 0; i < 2; ++i) loss[i] += other.loss[i];
  for (int i = 0; i < kMaxTokenMetrics; ++i) metric[i] += other.metric[i];
  for (int i = 0; i < kMaxRowMetrics; ++i) row_metric[i] += other.row_metric[i];
  kl += other.kl;
  entropy += other.entropy;
}

const std::vector<LossInfo>& losses() {
  static const std::vector<LossInfo> all = describe_all(Losses{});
  return all;
}

const std::vector<KlInfo>& kl_estimators() {
  static const std::vector<KlInfo> all = describe_estimators(KlEstimators{});
  return all;
}

unsigned columns_of(const Function& function) {
  unsigned columns = 0;
  if (function.loss != kNone) columns |= losses()[function.loss].columns;
  if (function.kl != kNone) {
    columns |= reads(kLogprob) | reads(kRefLogprob);
    if (kl_estimators()[function.kl].reads_old_logprob) columns |= reads(kOldLogprob);
  }
  if (function.entropy) columns |= reads(kEntropy);
  return columns;
}

KindScales kind_scales(const Function& function, const BatchCounts& counts,
                       const Coefficients& coefficients) {
  KindScales scales;
  with_loss(
      function, [&](const auto& loss) { scales = kind_scales_of(loss, counts, coefficients.mu); }, Losses{});
  return scales;
}

double pair_loss(const Function& function, int64_t rows, double pairs, double* row_sums,
                 double* pair_metric) {
  double result = 0;
  with_loss(
      function,
      [&](const auto& loss) {
        if constexpr (is_by_pairs<std::decay_t<decltype(loss)>>)
          result = loss.pair_loss(rows, pairs, row_sums, pair_metric);
      },
      Losses{});
  return result;
}

std::vector<std::string> value_names(const Function& function) {
  std::vector<std::string> names{"loss"};
  if (function.loss != kNone)
    for (const Metric& metric : losses()[function.loss].metrics) names.push_back(metric.name);
  if (function.entropy) names.push_back("entropy_loss");
  if (function.kl != kNone) {
    names.push_back("kl_loss");
    names.push_back("kl_coef");
  }
  return names;
}

uint32_t finish(const Function& function, const BatchCounts& counts, const Coefficients& coefficients,
                const Sums& sums, double pair_loss, const double* pair_metric, double* values) {
  uint32_t present = 1;
  int next = 1;
  const auto put = [&](double value, bool exists = true) {
    values[next] = exists ? value : NAN;
    if (exists) present |= 1u << next;
    ++next;
  };

  double total = 0;
  if (function.loss != kNone) {
    const LossInfo& info = losses()[function.loss];
    const KindScales scales = kind_scales(function, counts, coefficients);
    const double policy =
        info.pairs ? pair_loss : sums.loss[0] * scales.loss[0] + sums.loss[1] * scales.loss[1];
    total += policy;
    for (const Metric& metric : info.metrics) {
      const int kind = metric.kind;
      const double tokens = info.kinds ? counts.tokens[kind] : counts.all().tokens;
      const double rows = info.kinds ? counts.rows[kind] : counts.all().rows;
      const bool exists = !info.kinds || rows > 0;
      switch (metric.source) {
        case Metric::kTokenMean:
          put(sums.metric[metric.index] / (tokens + 1e-8) * scales.metric[kind], exists);
          break;
        case Metric::kRowMean:
          put(ratio(sums.row_metric[metric.index], rows));
          break;
        case Metric::kRowPerToken:
          put(sums.row_metric[metric.index] / (tokens + 1e-10));
          break;
        case Metric::kLoss:
          put(info.kinds ? sums.loss[kind] * scales.metric[kind] : policy, exists);
          break;
        case Metric::kPair:
          put(pair_metric[metric.index]);
          break;
        case Metric::kTotal:
          put(policy);
          break;
        case Metric::kMu:
          put(coefficients.mu);
          break;
      }
    }
  }
  if (function.entropy) {
    total += sums.entropy * coefficients.entropy;
    put(sums.entropy);
  }
  if (function.kl != kNone) {
    total += sums.kl * coefficients.kl;
    put(sums.kl);
    put(coefficients.kl);
  }
  values[0] = total;
  return present;
}

}  // namespace policy_loss

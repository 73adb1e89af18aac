#include "engine/advantages.h"

#include <algorithm>
#include <cmath>

namespace policy_loss {
namespace {

template <class... F>
void describe(std::vector<AdvantageInfo>* all, AdvantageShape shape, TypeList<F...>) {
  int index = 0;
  const auto add = [&]<class One>(const One*) {
    AdvantageInfo info{One::name, shape, index++, {}};
    if constexpr (field_count<One>() > 0)
      for (const auto& field : One::fields) info.options.push_back({field.name, field.choices});
    all->push_back(std::move(info));
  };
  (add(static_cast<const F*>(nullptr)), ...);
}

double ratio(double sum, double count) {
  return count > 0 ? sum / count : 0.0;
}

}  // namespace

const std::vector<AdvantageInfo>& advantages() {
  static const std::vector<AdvantageInfo> all = [] {
    std::vector<AdvantageInfo> list;
    describe(&list, AdvantageShape::kGroup, GroupAdvantages{});
    describe(&list, AdvantageShape::kRecurrence, RecurrentAdvantages{});
    describe(&list, AdvantageShape::kDistill, DistillAdvantages{});
    describe(&list, AdvantageShape::kBaseline, BaselineAdvantages{});
    return list;
  }();
  return all;
}

std::vector<std::string> advantage_value_names(const AdvantageFunction& function) {
  std::vector<std::string> names;
  const double* options = function.options.data();
  if (function.shape == AdvantageShape::kGroup)
    with_function(
        function.index, options,
        [&]<class F>(const F&) {
          constexpr GroupTraits traits = F::traits;
          for (int i = 0; i < traits.metric_count(); ++i)
            for (const char* of_groups : {"mean", "max", "min"})
              names.push_back(std::string("group_advantages/") + traits.metrics[i] + "/" + of_groups);
          if (traits.by_runs) names.push_back("experience_count");
          if (traits.by_runs || traits.has_duplicates) names.push_back("filtered_count");
          if (traits.by_runs) names.push_back("skipped_group_ratio");
        },
        GroupAdvantages{});
  if (function.shape == AdvantageShape::kDistill)
    with_function(
        function.index, options,
        [&]<class F>(const F&) {
          const std::string divergence = F::traits.divergence;
          names = {divergence + "/mean", divergence + "/std", "advantages/mean"};
        },
        DistillAdvantages{});
  return names;
}

void GroupTotals::add(const GroupRule& rule, double rows_of_group) {
  for (int i = 0; i < kGroupMetrics; ++i) {
    const double x = rule.metric[i];
    sum[i] += x;
    most[i] = groups == 0 ? x : std::max(most[i], x);
    least[i] = groups == 0 ? x : std::min(least[i], x);
  }
  groups += 1;
  rows += rows_of_group;
  if (rule.kept) return;
  dropped_groups += 1;
  dropped_rows += rows_of_group;
}

void finish_group_metrics(const AdvantageFunction& function, const GroupTotals& totals, double* values) {
  with_function(
      function.index, function.options.data(),
      [&]<class F>(const F&) {
        constexpr GroupTraits traits = F::traits;
        for (int i = 0; i < traits.metric_count(); ++i) {
          *values++ = ratio(totals.sum[i], totals.groups);
          *values++ = totals.most[i];
          *values++ = totals.least[i];
        }
        if (traits.by_runs) *values++ = totals.rows - totals.dropped_rows;
        if (traits.by_runs || traits.has_duplicates) *values++ = totals.dropped_rows;
        if (traits.by_runs) *values++ = ratio(totals.dropped_groups, totals.groups);
      },
      GroupAdvantages{});
}

void finish_distill_metrics(int64_t rows, const double* divergences, const double* advantages,
                            double* values) {
  double sum = 0, squares = 0, advantage = 0;
  for (int64_t row = 0; row < rows; ++row) {
    sum += divergences[row];
    advantage += advantages[row];
  }
  const double n = static_cast<double>(rows);
  const double mean = ratio(sum, n);
  for (int64_t row = 0; row < rows; ++row) squares += (divergences[row] - mean) * (divergences[row] - mean);
  values[0] = mean;
  values[1] = rows > 1 ? std::sqrt(squares / (n - 1)) : 0.0;
  values[2] = ratio(advantage, n);
}

}  // namespace policy_loss

// What there is to know of advantage functions and their batches, for those who do not know their types. A
// device's engine takes an AdvantageFunction and an AdvantageBatch; what is the same for all devices is here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/advantage_batch.h"
#include "engine/advantage_registry.h"
#include "engine/function.h"

namespace policy_loss {

// One of the lists' functions, by its shape and its index there, with its options in the order of its fields.
struct AdvantageFunction {
  AdvantageShape shape = AdvantageShape::kGroup;
  int index = 0;
  std::vector<double> options;
};

struct AdvantageInfo {
  std::string name;
  AdvantageShape shape;
  int index;
  std::vector<LossInfo::Option> options;
};
const std::vector<AdvantageInfo>& advantages();

// Where results go; what is null is not asked for.
struct AdvantageOutputs {
  float* advantages = nullptr;  // per token
  float* returns = nullptr;     // per token, of recurrences
  float* scores = nullptr;      // per row, of group functions
  uint32_t* copies = nullptr;   // per row, of group functions: how often it counts, 0 where dropped
  double* values = nullptr;     // advantage_value_names() of them
};

// The values of a call by name: the metrics.
std::vector<std::string> advantage_value_names(const AdvantageFunction& function);

// What the metrics of group functions are made of.
struct GroupTotals {
  double groups = 0, dropped_groups = 0;
  double rows = 0, dropped_rows = 0;
  double sum[kGroupMetrics] = {}, most[kGroupMetrics] = {}, least[kGroupMetrics] = {};

  // Groups are to be added in their order.
  void add(const GroupRule& rule, double rows_of_group);
};
void finish_group_metrics(const AdvantageFunction& function, const GroupTotals& totals, double* values);

// Likewise those of distillation: from each row's sums of divergences and of advantages.
void finish_distill_metrics(int64_t rows, const double* divergences, const double* advantages,
                            double* values);

}  // namespace policy_loss

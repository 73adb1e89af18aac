// Advantage functions, as far as they do not depend on a device. A device's engine takes an AdvantageFunction
// and an AdvantageBatch and fills AdvantageOutputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/advantage_batch.h"
#include "engine/advantage_registry.h"
#include "engine/function.h"

namespace policy_loss {

struct AdvantageFunction {
  AdvantageShape shape = AdvantageShape::kGroup;
  int index = 0;                // in the list of its shape
  std::vector<double> options;  // in the order of its fields
};

// An advantage function without its type.
struct AdvantageInfo {
  std::string name;
  AdvantageShape shape;
  int index;
  std::vector<OptionInfo> options;
};
const std::vector<AdvantageInfo>& advantages();

// The destination of the results. Null pointers are not wanted.
struct AdvantageOutputs {
  float* advantages = nullptr;  // per token
  float* returns = nullptr;     // per token; recurrences only
  float* scores = nullptr;      // per row; group functions only
  uint32_t* repeats = nullptr;  // per row, how often it counts, 0 if dropped; group functions only
  double* values = nullptr;     // the metrics, in the order of advantage_value_names()
};

// Returns the names of a call's metrics.
std::vector<std::string> advantage_value_names(const AdvantageFunction& function);

// Sums for the metrics of group functions.
struct GroupTotals {
  double groups = 0, dropped_groups = 0;
  double rows = 0, dropped_rows = 0;
  double sum[kGroupMetrics] = {}, most[kGroupMetrics] = {}, least[kGroupMetrics] = {};

  // Groups must be added in order, as the sums depend on it.
  void add(const GroupRule& rule, double rows_of_group);
};
void finish_group_metrics(const AdvantageFunction& function, const GroupTotals& totals, double* values);

// Writes the metrics of a distillation function. It takes each row's sum of divergences and of advantages.
void finish_distill_metrics(int64_t rows, const double* divergences, const double* advantages,
                            double* values);

}  // namespace policy_loss

// What advantage functions do on any device. The engine of a device takes an
// AdvantageFunction and an AdvantageBatch, and fills in AdvantageOutputs.
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
  std::vector<double> options;  // in the order of the function's `fields`
};

// The name, shape and options of an advantage function, for code that does not know its C++ type.
struct AdvantageInfo {
  std::string name;
  AdvantageShape shape;
  int index;
  std::vector<OptionInfo> options;
};
const std::vector<AdvantageInfo>& advantages();

// The arrays that receive the results of an advantage function. A null pointer means that the result is not
// wanted.
struct AdvantageOutputs {
  float* advantages = nullptr;  // per token
  float* returns = nullptr;     // per token; recurrences and functions with a baseline per token only
  float* scores = nullptr;      // per row; group functions only
  uint32_t* repeats = nullptr;  // per row, how often it counts; 0: dropped; group functions only
  Spread* spreads = nullptr;    // per row; recurrences that whiten and measure the batch only
  double* values = nullptr;     // the metrics, in the order of advantage_value_names()
};

// Returns the names of the metrics that a call computes.
std::vector<std::string> advantage_value_names(const AdvantageFunction& function);

// The counts, sums and extremes from which the metrics of group functions are computed.
struct GroupTotals {
  double groups = 0, dropped_groups = 0;
  double rows = 0, dropped_rows = 0;
  double sum[kGroupMetrics] = {}, most[kGroupMetrics] = {}, least[kGroupMetrics] = {};

  // Adds one group. Groups must be added in order, because another order could round the sums differently.
  void add(const GroupRule& rule, double rows_of_group);
};
void finish_group_metrics(const AdvantageFunction& function, const GroupTotals& totals, double* values);

// Writes the metrics of a distillation function to `values`. They are computed from each row's sum of
// divergences and sum of advantages.
void finish_distill_metrics(int64_t rows, const double* divergences, const double* advantages,
                            double* values);

}  // namespace policy_loss

// The function that a call evaluates: up to three terms over one batch, policy loss − entropy loss + KL loss.
//
// A device's engine takes a PreparedFunction and a BatchView and fills Sums. Everything else is here, once
// for all devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/construct.h"
#include "engine/sums.h"
#include "engine/terms.h"

namespace policy_loss {

struct Function : Terms {
  std::vector<double> options;  // of the policy loss, in the order of its fields
};

// Options of a loss or an advantage function, without its type.
struct OptionInfo {
  const char* name;
  const char* const* choices;  // the words that it accepts, ended by null; null if it takes a number
};

// A policy loss without its type.
struct LossInfo {
  std::string name;
  std::vector<OptionInfo> options;
  std::vector<Metric> metrics;
  LossTraits traits;
};
const std::vector<LossInfo>& losses();

struct KlInfo {
  std::string name;
  bool reads_old_logprob;
};
const std::vector<KlInfo>& kl_estimators();

// Returns the columns that a function reads.
unsigned columns_of(const Terms& terms);

// A function whose loss object is constructed once for all calls and all devices.
class PreparedFunction {
 public:
  explicit PreparedFunction(Function function);
  const Function& function() const { return function_; }
  // The loss object, of the type in Losses at function().loss. Undefined without a loss.
  const void* loss() const { return loss_.bytes; }
  // Null without a policy loss.
  const LossInfo* info() const { return function_.has_loss() ? &losses()[function_.loss] : nullptr; }
  // The number of values of a call: the length of value_names().
  int64_t values() const { return values_; }

 private:
  Function function_;
  int64_t values_;
  LossStorage loss_;
};

KindScales kind_scales(const PreparedFunction& function, const BatchCounts& counts,
                       const Coefficients& coefficients);

// Computes a loss over pairs of rows, as a mean over `pairs` pairs. Replaces the row sums by the rows'
// gradient weights, fills pair_metric and returns the loss.
double pair_loss(const PreparedFunction& function, int64_t rows, double pairs, double* row_sums,
                 double* pair_metric);

// The names of a call's values: the total loss, then every metric.
std::vector<std::string> value_names(const Function& function);

// Writes a call's values in the order of value_names(). Returns a set of bits: bit i is set if values[i]
// exists. A metric does not exist, and is NaN, if the batch has no row of the metric's kind.
uint32_t finish(const PreparedFunction& function, const BatchCounts& counts, const Coefficients& coefficients,
                const Sums& sums, double pair_loss, const double* pair_metric, double* values);

// The destination of a call's results. Null pointers are not wanted.
struct Outputs {
  float* grad = nullptr;          // per token, ∂loss/∂logprob
  float* grad_entropy = nullptr;  // per token, ∂loss/∂entropy
  double* values = nullptr;       // [values()]
  uint32_t present = 0;           // bit i: values[i] exists
  double* counts = nullptr;       // [kCounts], of the batch itself even if there is a normalizer
};

}  // namespace policy_loss

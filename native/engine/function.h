// What is to be computed: up to three terms over one batch, policy loss − entropy loss + KL loss, and the
// sums and values that come of it. A device's engine takes a Function and a BatchView and fills Sums; the
// rest is here, once for all devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/sums.h"
#include "engine/weights.h"

namespace policy_loss {

constexpr int kNone = -1;

struct Function {
  // Index in Losses, with its options in the order of its fields, and how each kind of row is aggregated.
  int loss = kNone;
  std::vector<double> options;
  Aggregation loss_aggregation[2] = {};

  int kl = kNone;  // index in KlEstimators
  Aggregation kl_aggregation = {};

  bool entropy = false;
  bool entropy_of_usual_rows_only = false;
  Aggregation entropy_aggregation = {};

  // Whether there is nothing to compute but the batch's counts.
  bool counts_only() const { return loss == kNone && kl == kNone && !entropy; }
};

// What a loss is called and what it takes, for those who do not know its type.
struct LossInfo {
  struct Option {
    const char* name;
    const char* const* choices;  // null, or the words it may be, null-terminated
  };
  std::string name;
  std::vector<Option> options;
  std::vector<Metric> metrics;
  unsigned columns;
  bool kinds;      // tells the experts' rows from the others
  bool row_facts;  // needs a row's sum before its tokens
  bool pairs;      // weights come from pairs of rows
};
const std::vector<LossInfo>& losses();

struct KlInfo {
  std::string name;
  bool reads_old_logprob;
};
const std::vector<KlInfo>& kl_estimators();

// The columns that a function reads.
unsigned columns_of(const Function& function);

KindScales kind_scales(const Function& function, const BatchCounts& counts, const Coefficients& coefficients);

// For a loss over pairs of rows, a mean over so many pairs: replaces the rows' sums by their weights; gives
// the loss and fills pair_metric.
double pair_loss(const Function& function, int64_t rows, double pairs, double* row_sums, double* pair_metric);

// The values of a call, in the order of value_names(): the total loss and every metric. A metric of a kind of
// which the batch has no row is absent, and NaN here with its bit missing in `present`.
std::vector<std::string> value_names(const Function& function);
uint32_t finish(const Function& function, const BatchCounts& counts, const Coefficients& coefficients,
                const Sums& sums, double pair_loss, const double* pair_metric, double* values);

// Where a call's results go.
struct Outputs {
  float* grad = nullptr;          // per token, ∂loss/∂logprob
  float* grad_entropy = nullptr;  // per token, ∂loss/∂entropy
  double* values = nullptr;       // value_names(function) of them
  uint32_t present = 0;           // bit i: values[i] exists
  double* counts = nullptr;       // the batch's own, whatever the normalizer: kCounts of them
};

}  // namespace policy_loss

// The function that a call evaluates on a batch: policy loss − entropy loss + KL loss. Each of the three
// terms is optional.
//
// The engine of a device takes a PreparedFunction and a BatchView, and fills in Sums. Everything that does
// not depend on the device is here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/construct.h"
#include "engine/exact_sums.h"
#include "engine/terms.h"
#include "program/decode.h"

namespace policy_loss {

struct ProgramLoss;

struct Function : Terms {
  std::vector<double> options;                      // of the policy loss, in the order of its fields
  std::shared_ptr<const ProgramLoss> program_loss;  // set if `loss` is kProgram
};

// An option of a loss or an advantage function, for code that does not know the function's C++ type.
struct OptionInfo {
  const char* name;
  const char* const* choices;  // the accepted words, with a null at the end; null if it is a number
};

// The name, options, metrics and traits of a policy loss, for code that does not know its C++ type.
struct LossInfo {
  std::string name;
  std::vector<OptionInfo> options;
  std::vector<Metric> metrics;
  LossTraits traits;
};
const std::vector<LossInfo>& losses();

// A metric of a program: a mean over tokens or over rows, or a number that the program computes from the
// whole batch.
struct ProgramMetric {
  std::string name;
  Metric::Source source;  // kTokenMean, kMeanOfRows or kBatch
};

// A loss that is computed by programs. It has two of them, because a call without a gradient computes less.
struct ProgramLoss {
  ProgramLoss(program::Program with_grad, program::Program without_grad, std::vector<ProgramMetric> metrics);
  ProgramLoss(const ProgramLoss&) = delete;

  // Returns the program for a call. Both compute the same losses and metrics.
  const program::Program& program(bool wants_grad) const {
    return wants_grad || always_with_grad ? with_grad : without_grad;
  }

  const program::Program with_grad, without_grad;
  const bool always_with_grad;  // whether that one is faster even if no gradient is wanted
  const std::vector<ProgramMetric> metrics;
  LossInfo info;
};

struct KlInfo {
  std::string name;
  bool reads_old_logprob;
};
const std::vector<KlInfo>& kl_estimators();

// Returns the description of a function's policy loss, or null if the function has none.
const LossInfo* info_of(const Function& function);

// Returns the set of columns that a function reads, with one bit per column.
unsigned columns_of(const Function& function);

// A function with its loss object. The object is constructed once and used by all calls on all devices.
class PreparedFunction {
 public:
  explicit PreparedFunction(Function function);
  const Function& function() const { return function_; }
  // Returns the loss object. Its type is the one at index function().loss in Losses. The object must not be
  // read if the function has no loss, or a user-defined one.
  const void* loss() const { return loss_.bytes; }
  // Returns the description of the policy loss, or null if the function has none.
  const LossInfo* info() const { return info_of(function_); }
  // Returns the program that computes the loss, or null if no program does.
  const program::Program* program(bool with_grad) const {
    const ProgramLoss* const loss = function_.program_loss.get();
    return loss ? &loss->program(with_grad) : nullptr;
  }
  // Returns how many values a call computes, which is the length of value_names().
  int64_t values() const { return values_; }

 private:
  Function function_;
  int64_t values_;
  LossStorage loss_;
};

// Returns whether the gradients of a token depend on the token's own columns, on its row's options and on
// counts of unmasked tokens and rows, but not on the columns of other tokens.
bool gradient_is_per_token(const PreparedFunction& function);

KindScales kind_scales(const PreparedFunction& function, const BatchCounts& counts,
                       const Coefficients& coefficients);

// Computes a loss over pairs of rows from the row sums (see Dpo::pair_loss()). Replaces the row sums with the
// rows' gradient weights, and adds the losses and metrics of the pairs to `sums`. `pairs` is the number of
// pairs in the whole batch.
void add_pairs(const PreparedFunction& function, const BatchView& batch, double pairs, double* row_sums,
               ExactSums* sums);

// Returns the names of the values that a call computes: the total loss, then every metric. Metrics of the
// whole batch (Metric::kBatch) come last.
std::vector<std::string> value_names(const Function& function);

// Writes the values of a call in the order of value_names(). Bit i of the returned number is set if values[i]
// exists. A metric of one kind of row does not exist, and is NaN, if the batch has no row of that kind.
// Metrics of the whole batch have no bits, and are NaN if they do not exist. `batch_metrics` are those that a
// program computed, or null.
uint64_t finish(const PreparedFunction& function, const BatchCounts& counts, const Coefficients& coefficients,
                const Sums& sums, const double* batch_metrics, double* values);

// What is needed of each part of a batch to compute the values of the whole batch: the exact sums, three
// coefficients, and which terms the call had (1: policy loss, 2: KL loss, 4: entropy loss).
constexpr int kPartLength = kSums * kTermsOfSum + 4;
void write_part(const PreparedFunction& function, const ExactSums& sums, const Coefficients& coefficients,
                double* part);
// Computes the values of a batch from its parts, of which there is at least one, and from the batch's counts.
// The result is that of finish(), or −1 if a part has other terms or coefficients than the first part.
int64_t merge(const PreparedFunction& function, const std::vector<const double*>& parts,
              const BatchCounts& counts, double* values);

// The arrays that receive a call's results. A null pointer means that the result is not wanted.
struct Outputs {
  GradientView grad{};          // per token, ∂loss/∂logprob
  GradientView grad_entropy{};  // per token, ∂loss/∂entropy
  float* grad_log_z = nullptr;  // per row, ∂loss/∂log_z
  double* values = nullptr;     // [values()]
  uint64_t present = 0;         // bit i: values[i] exists; see finish()
  double* part = nullptr;       // [kPartLength] the sums from which merge() computes the values
  double* counts = nullptr;     // [kCounts] of the batch itself, even if there is a normalizer

  bool has_grad() const { return grad || grad_entropy || grad_log_z; }
};

}  // namespace policy_loss

// Evaluates combinations of a policy loss, a KL loss and an entropy loss, on the CPU and on the emulated
// device.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "cuda/request.h"
#include "test/native/kernels/batches.h"

namespace kernels_test {

// Everything that an evaluation computes.
struct Outcome {
  std::vector<float> grad, grad_entropy;
  std::vector<double> values, counts;
  uint64_t present = 0;

  bool same_bits(const Outcome& other) const;
};

// Returns an outcome with arrays of the right size. Its gradients and counts are 42, so that tests notice
// elements that an evaluation does not write.
Outcome empty_outcome(const Function& function, const Batch& batch);

// Returns a function with these terms. `loss` and `kl` may be kNone. `variant` selects the options. The KL
// loss and the entropy loss get other aggregations than the policy loss.
Function make_function(int loss, int variant, Aggregation aggregation, int kl, bool entropy);

Outcome on_cpu(const Function& function, const Batch& batch, const Coefficients& coefficients,
               const Normalizer& normalizer = {});

// Returns a call that writes the result and its arrays.
cuda::Call call_into(Outcome* outcome, cuda::Result* result);
constexpr double kKlScale = 0.3;  // the factor of the KL values that are subtracted from a base

// Returns a call that computes KL values and their mean. `base` may be null.
cuda::KlCall kl_call_into(float* out, double* mean, int estimator, const float* base);

// Evaluates a function on the emulated device, on `resident` (a batch that was uploaded before) or, if it is
// null, on `batch` in host memory. `what` names the test in messages.
Outcome on_device(const Function& function, const Batch& batch, const Coefficients& coefficients,
                  const cuda::Resident* resident, const std::string& what, const Normalizer& normalizer = {});

// Uploads a batch to the emulated device. `inputs` are the inputs of advantage functions, if any.
cuda::Resident* upload(const BatchView& batch, const cuda::AdvantageInputs& inputs = {});

bool same_bits(const auto& a, const auto& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
}

// Returns whether a and b agree within the rounding errors of float32. `scale` is the magnitude of the terms
// of which a and b are sums. NaN agrees with NaN.
bool close(double a, double b, double scale);

// Expects that the outcomes agree, and that the gradient is exactly 0 at tokens that are masked or in a row
// that does not count.
void compare(const Outcome& expected, const Outcome& found, const Batch& batch, const std::string& what);

}  // namespace kernels_test

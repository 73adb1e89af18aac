// Evaluates functions of a policy loss, a KL loss and an entropy loss on the CPU and on the emulated device.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "cuda/request.h"
#include "test/native/kernels/batches.h"

namespace kernels_test {

// All results of an evaluation.
struct Outcome {
  std::vector<float> grad, grad_entropy;
  std::vector<double> values, counts;
  uint32_t present = 0;

  bool same_bits(const Outcome& other) const;
};

// Returns an outcome of the right size, filled with numbers that an evaluation must overwrite.
Outcome empty_outcome(const Function& function, const Batch& batch);

// Returns a function whose options, aggregations and terms depend on the variant.
Function make_function(int loss, int variant, Aggregation aggregation, int kl, bool entropy);

Outcome on_cpu(const Function& function, const Batch& batch, const Coefficients& coefficients,
               const Normalizer& normalizer = {});

// Evaluates a batch in host memory, or the resident batch if one is given.
Outcome on_device(const Function& function, const Batch& batch, const Coefficients& coefficients,
                  const cuda::Resident* resident, const std::string& what, const Normalizer& normalizer = {});

// Uploads a batch, without the inputs of advantage functions.
cuda::Resident* upload(const BatchView& batch, const cuda::AdvantageInputs& inputs = {});

bool same_bits(const auto& a, const auto& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
}

// Returns whether a and b agree up to float32's rounding, for sums whose terms are as large as `scale`.
bool close(double a, double b, double scale);

// Expects that the outcomes agree, and that the gradients of masked tokens are exactly 0.
void compare(const Outcome& expected, const Outcome& found, const Batch& batch, const std::string& what);

}  // namespace kernels_test

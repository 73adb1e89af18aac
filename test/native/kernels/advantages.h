// Runs advantage functions on the CPU and on the emulated device, for tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "test/native/kernels/evaluations.h"

namespace kernels_test {

// The inputs of advantage functions. Masked tokens have NaN in every column but rewards and values, because
// no function may read the others there.
struct Inputs {
  std::unique_ptr<Batch> data;
  std::vector<double> rewards, baselines;
  std::vector<int32_t> groups, runs;
  AdvantageBatch batch;  // points into the arrays
};

// Draws inputs at random. Groups have different sizes, and may have a single row. Some rewards are equal.
Inputs draw_inputs(const Shape& shape, DType dtype, unsigned seed);

// Everything that a call of an advantage function computes.
struct Advantages {
  std::vector<float> advantages, returns, scores;
  std::vector<uint32_t> repeats;
  std::vector<double> values;
  NonFiniteValue not_finite;

  // Fills the arrays with 42, so that tests notice elements that a call should write and does not.
  Advantages(const AdvantageFunction& function, const Inputs& inputs);

  bool same_bits(const Advantages& other) const;
};

constexpr uint64_t kSeed = 12;  // the seed of random choices

Advantages advantages_on_cpu(const AdvantageFunction& function, const Inputs& inputs);

// Returns a call that writes the result.
cuda::AdvantageCall call_into(Advantages* result);

// Computes advantages on the emulated device, from `resident` (a batch that was uploaded before) or, if it is
// null, from `inputs` in host memory. `what` names the test in messages.
Advantages advantages_on_device(const AdvantageFunction& function, const Inputs& inputs,
                                const cuda::Resident* resident, const std::string& what);

// Uploads the batch `view` together with the inputs of advantage functions. Both must contain the same
// log-probabilities of the policy that sampled the tokens.
cuda::Resident* upload_inputs(const Inputs& inputs, const BatchView& view);

}  // namespace kernels_test

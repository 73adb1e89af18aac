// Calls of advantage functions, on the CPU and through the emulation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "test/native/kernels/evaluations.h"

namespace kernels_test {

// The inputs of advantage functions. Log-probabilities are NaN under the mask, where nothing may read them.
struct Inputs {
  std::unique_ptr<Batch> data;
  std::vector<double> rewards, baselines;
  std::vector<int32_t> groups, runs;
  AdvantageBatch batch;  // points into the arrays
};

// Draws groups of any size, some of them of one row, and rewards of which some are equal.
Inputs draw_inputs(const Shape& shape, DType dtype, unsigned seed);

// Everything that a call returns.
struct Advantages {
  std::vector<float> advantages, returns, scores;
  std::vector<uint32_t> repeats;
  std::vector<double> values;
  NonFiniteValue not_finite;

  // Filled with numbers that a call has to overwrite.
  Advantages(const AdvantageFunction& function, const Inputs& inputs);

  bool same_bits(const Advantages& other) const;
};

constexpr uint64_t kSeed = 12;  // of random choices

Advantages advantages_on_cpu(const AdvantageFunction& function, const Inputs& inputs);

// Computes the advantages of inputs in host memory, or of the resident batch if one is given.
Advantages advantages_on_device(const AdvantageFunction& function, const Inputs& inputs,
                                const cuda::Resident* resident, const std::string& what);

// Uploads a batch and inputs that have the same log-probabilities of the sampling policy.
cuda::Resident* upload_inputs(const Inputs& inputs, const BatchView& view);

}  // namespace kernels_test

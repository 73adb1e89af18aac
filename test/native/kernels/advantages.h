// Runs advantage functions on the CPU and on the emulated device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "test/native/kernels/evaluations.h"

namespace kernels_test {

// The inputs of advantage functions. Masked log-probabilities are NaN, because nothing may read them.
struct Inputs {
  std::unique_ptr<Batch> data;
  std::vector<double> rewards, baselines;
  std::vector<int32_t> groups, runs;
  AdvantageBatch batch;  // points into the arrays
};

// Draws inputs at random. Groups have any size, also one row, and some rewards are equal.
Inputs draw_inputs(const Shape& shape, DType dtype, unsigned seed);

// All results of a call.
struct Advantages {
  std::vector<float> advantages, returns, scores;
  std::vector<uint32_t> repeats;
  std::vector<double> values;
  NonFiniteValue not_finite;

  // Fills the arrays with numbers that a call must overwrite.
  Advantages(const AdvantageFunction& function, const Inputs& inputs);

  bool same_bits(const Advantages& other) const;
};

constexpr uint64_t kSeed = 12;  // the seed of random choices

Advantages advantages_on_cpu(const AdvantageFunction& function, const Inputs& inputs);

// Computes advantages from inputs in host memory, or from the resident batch if one is given.
Advantages advantages_on_device(const AdvantageFunction& function, const Inputs& inputs,
                                const cuda::Resident* resident, const std::string& what);

// Uploads a batch with inputs of advantage functions. Both must have the same log-probabilities of the
// sampling policy.
cuda::Resident* upload_inputs(const Inputs& inputs, const BatchView& view);

}  // namespace kernels_test

// From a Function to the plain words that CUDA's face takes, and from what comes back to a call's values. For
// the host's side of that face alone.
#pragma once

#include "cuda/cuda.h"
#include "engine/function.h"

namespace policy_loss::cuda {

// The function must outlive the request, which borrows its options.
inline Request request_of(const Function& function, const Coefficients& coefficients,
                          const Normalizer& normalizer) {
  Request request;
  request.loss = function.loss;
  request.options = function.options.data();
  for (int kind = 0; kind < 2; ++kind) request.loss_aggregation[kind] = function.loss_aggregation[kind];
  request.kl = function.kl;
  request.kl_aggregation = function.kl_aggregation;
  request.entropy = function.entropy;
  request.entropy_of_usual_rows_only = function.entropy_of_usual_rows_only;
  request.entropy_aggregation = function.entropy_aggregation;
  request.columns = columns_of(function);
  request.coefficients = coefficients;
  request.normalizer = normalizer;
  return request;
}

// finish() of a device's result.
inline uint32_t finish_result(const Function& function, const Request& request, const Result& result,
                              double* values) {
  const BatchCounts& counts = request.normalizer.given ? request.normalizer.counts : result.counts;
  return finish(function, counts, request.coefficients, result.sums, result.pair_loss, result.pair_metric,
                values);
}

}  // namespace policy_loss::cuda

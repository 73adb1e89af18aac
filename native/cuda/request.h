// From a Function to the plain words that CUDA's face takes. For the host's side of that face alone.
#pragma once

#include "cuda/cuda.h"
#include "engine/function.h"

namespace policy_loss::cuda {

// The function must outlive the request, which borrows its options.
inline Request request_of(const Function& function, const Coefficients& coefficients) {
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
  return request;
}

}  // namespace policy_loss::cuda

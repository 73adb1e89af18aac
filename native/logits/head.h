// A call on the output head, the layer of a model that turns hidden states into logits.
#pragma once

#include <cstdint>

#include "logits/call.h"

namespace policy_loss {

// Views of the inputs and outputs of a call. Without any gradient, it computes the logits from the hidden
// states. With one, it computes the gradients from that of the logits. Rows whose target is kIgnoredTarget
// take no part.
struct HeadCall {
  int64_t rows = 0, vocabulary = 0;
  int64_t size = 0;  // the length of a hidden state
  const int32_t* targets = nullptr;
  const void* hidden = nullptr;  // [rows, size]
  DType hidden_dtype = DType::kFloat32;
  const void* weight = nullptr;  // [vocabulary, size]
  DType weight_dtype = DType::kFloat32;
  const void* bias = nullptr;  // [vocabulary], or null
  DType bias_dtype = DType::kFloat32;
  // The logits, or the gradient with respect to them. The first row is that of the first row that takes part.
  float* logits = nullptr;

  // The gradients, null where they are not wanted. The rows of grad_hidden that take no part become 0.
  void* grad_hidden = nullptr;  // [rows, size]
  DType grad_hidden_dtype = DType::kFloat32;
  float* grad_weight = nullptr;  // [vocabulary, size]
  float* grad_bias = nullptr;    // [vocabulary]
  // Whether grad_weight and grad_bias contain the sums over earlier rows.
  bool adds = false;

  bool wants_gradients() const { return grad_hidden || grad_weight || grad_bias; }
};

}  // namespace policy_loss

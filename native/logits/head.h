// A call on the output head, the layer of a model that turns hidden states into logits.
#pragma once

#include <cstdint>

#include "logits/call.h"
#include "logits/product.h"

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
};

// The rows of a call that take part. They are counted from the first of them.
struct HeadRows {
  int64_t first = 0;
  int64_t count = 0;
  const int64_t* rows = nullptr;
};

// Returns the rows of a call that take part. Their list is written to `rows`, which must have room for all
// rows of the call.
inline HeadRows find_rows(const HeadCall& call, int64_t* rows) {
  HeadRows found;
  for (int64_t row = 0; row < call.rows; ++row) {
    if (call.targets[row] == kIgnoredTarget) continue;
    if (found.count == 0) found.first = row;
    rows[found.count++] = row - found.first;
  }
  found.rows = rows;
  return found;
}

// The products that compute a call. They can run at the same time.
struct HeadProducts {
  Product of[3];
  int count = 0;

  void add(const Product& product) { of[count++] = product; }
};

inline const void* number_at(const void* data, DType dtype, int64_t index) {
  return static_cast<const char*>(data) + index * size_of(dtype);
}

// Returns the products of a call. `one` is the address of the number 1.
inline HeadProducts products_of(const HeadCall& call, const HeadRows& rows, const float* one) {
  const int64_t first = rows.first * call.size;
  const Matrix hidden{number_at(call.hidden, call.hidden_dtype, first), call.hidden_dtype, call.size,
                      rows.rows};
  const Matrix weight{call.weight, call.weight_dtype, call.size};
  const Matrix logits{call.logits, DType::kFloat32, call.vocabulary, rows.rows};
  HeadProducts products;
  if (!call.grad_hidden && !call.grad_weight && !call.grad_bias)
    products.add({.left = {hidden},
                  .right = {weight},
                  .rows = rows.count,
                  .columns = call.vocabulary,
                  .terms = call.size,
                  .out = call.logits,
                  .out_stride = call.vocabulary,
                  .out_rows = rows.rows,
                  .bias = call.bias,
                  .bias_dtype = call.bias_dtype});
  if (call.grad_hidden)
    products.add({.left = {logits},
                  .right = {weight, true},
                  .rows = rows.count,
                  .columns = call.size,
                  .terms = call.vocabulary,
                  .out = const_cast<void*>(number_at(call.grad_hidden, call.grad_hidden_dtype, first)),
                  .out_dtype = call.grad_hidden_dtype,
                  .out_stride = call.size,
                  .out_rows = rows.rows});
  const auto add_sum = [&](const Matrix& factors, int64_t columns, float* out) {
    if (out)
      products.add({.left = {logits, true},
                    .right = {factors, true},
                    .rows = call.vocabulary,
                    .columns = columns,
                    .terms = rows.count,
                    .out = out,
                    .out_stride = columns,
                    .in_order = true,
                    .adds = call.adds});
  };
  add_sum(hidden, call.size, call.grad_weight);
  add_sum({one}, 1, call.grad_bias);
  return products;
}

}  // namespace policy_loss

#include "cpu/head.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace policy_loss::cpu {
namespace {

// The parts that each thread gets at least, so that all end at nearly the same time.
constexpr int64_t kPartsPerThread = 4;
constexpr int64_t kRowsToClear = 64;

const float kOne = 1.0f;

int64_t divided(int64_t n, int64_t by) {
  return (n + by - 1) / by;
}

const void* at(const void* data, DType dtype, int64_t index) {
  return static_cast<const char*>(data) + index * size_of(dtype);
}

}  // namespace

int64_t HeadEvaluation::open_phase() {
  if (has_begun_ || check_abort()) return 0;
  has_begun_ = true;
  find_rows();
  if (call_.wants_gradients())
    prepare_gradients();
  else
    prepare_logits();
  int64_t items = clearing_items_;
  for (const Divided& each : products_) items += each.parts;
  return items;
}

void HeadEvaluation::find_rows() {
  for (int64_t row = 0; row < call_.rows; ++row) {
    if (call_.targets[row] == kIgnoredTarget) continue;
    if (rows_.empty()) first_ = row;
    rows_.push_back(row - first_);
  }
}

void HeadEvaluation::prepare_logits() {
  const int64_t begin = first_ * call_.size;
  Product logits;
  logits.left = {
      {at(call_.hidden, call_.hidden_dtype, begin), call_.hidden_dtype, call_.size, rows_.data()}};
  logits.right = {{call_.weight, call_.weight_dtype, call_.size}};
  logits.rows = static_cast<int64_t>(rows_.size());
  logits.columns = call_.vocabulary;
  logits.terms = call_.size;
  logits.out = call_.logits;
  logits.out_stride = call_.vocabulary;
  logits.out_rows = rows_.data();
  logits.bias = call_.bias;
  logits.bias_dtype = call_.bias_dtype;
  add_product(logits);
}

void HeadEvaluation::prepare_gradients() {
  const int64_t begin = first_ * call_.size;
  const int64_t count = static_cast<int64_t>(rows_.size());
  const Matrix gradient{call_.logits, DType::kFloat32, call_.vocabulary, rows_.data()};
  if (call_.grad_hidden) {
    clearing_items_ = divided(call_.rows, kRowsToClear);
    Product hidden;
    hidden.left = {gradient};
    hidden.right = {{call_.weight, call_.weight_dtype, call_.size}, true};
    hidden.rows = count;
    hidden.columns = call_.size;
    hidden.terms = call_.vocabulary;
    hidden.out = const_cast<void*>(at(call_.grad_hidden, call_.grad_hidden_dtype, begin));
    hidden.out_dtype = call_.grad_hidden_dtype;
    hidden.out_stride = call_.size;
    hidden.out_rows = rows_.data();
    add_product(hidden);
  }
  // The gradients that are sums over rows.
  const auto add_sum = [&](const Matrix& factors, int64_t columns, float* out) {
    if (!out) return;
    Product sum;
    sum.left = {gradient, true};
    sum.right = {factors, true};
    sum.rows = call_.vocabulary;
    sum.columns = columns;
    sum.terms = count;
    sum.out = out;
    sum.out_stride = columns;
    sum.in_order = true;
    sum.adds = call_.adds;
    add_product(sum);
  };
  const void* const hidden = at(call_.hidden, call_.hidden_dtype, begin);
  add_sum({hidden, call_.hidden_dtype, call_.size, rows_.data()}, call_.size, call_.grad_weight);
  add_sum({&kOne}, 1, call_.grad_bias);
}

void HeadEvaluation::add_product(const Product& product) {
  const int64_t wanted = kPartsPerThread * Pool::shared().threads();
  const int64_t per_column = divided(product.rows, kProductRows);
  const int64_t fair = divided(product.columns * per_column, wanted);
  const int64_t columns = std::min<int64_t>(divided(std::max<int64_t>(fair, 1), kMostTileColumns) * kMostTileColumns,
                                            kProductColumns);
  const int64_t per_row = divided(product.columns, columns);
  products_.push_back({product, columns, per_row, per_row * per_column});
}

void HeadEvaluation::work(int64_t item) {
  if (check_abort()) return;
  if (item < clearing_items_)
    return clear_ignored_rows(item * kRowsToClear, std::min((item + 1) * kRowsToClear, call_.rows));
  item -= clearing_items_;
  const Divided* divided = products_.data();
  while (item >= divided->parts) item -= divided++->parts;
  const Product& product = divided->product;
  // Neighbouring parts have the same columns, so threads that compute at the same time read the same ones.
  const int64_t rows = divided->parts / divided->parts_per_row;
  const int64_t row = item % rows * kProductRows;
  const int64_t column = item / rows * divided->columns;
  const std::unique_ptr<ProductMemory> memory(new ProductMemory);
  target()->multiply(product,
                     {row, std::min(row + kProductRows, product.rows), column,
                      std::min(column + divided->columns, product.columns)},
                     memory.get());
}

void HeadEvaluation::clear_ignored_rows(int64_t first, int64_t last) const {
  const int64_t bytes = call_.size * size_of(call_.grad_hidden_dtype);
  for (int64_t row = first; row < last; ++row)
    if (call_.targets[row] == kIgnoredTarget)
      std::memset(static_cast<char*>(call_.grad_hidden) + row * bytes, 0, bytes);
}

}  // namespace policy_loss::cpu

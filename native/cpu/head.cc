#include "cpu/head.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace policy_loss::cpu {
namespace {

// The parts that each thread gets at least, so that all end at nearly the same time.
constexpr int64_t kPartsPerThread = 4;
// The rows that an item clears.
constexpr int64_t kRowsToClear = 64;

const float kOne = 1.0f;

int64_t divide_up(int64_t n, int64_t by) {
  return (n + by - 1) / by;
}

}  // namespace

int64_t HeadEvaluation::open_phase() {
  if (has_begun_ || check_abort()) return 0;
  has_begun_ = true;
  rows_.resize(call_.rows);
  products_ = products_of(call_, find_rows(call_, rows_.data()), &kOne);
  if (call_.grad_hidden) clearing_items_ = divide_up(call_.rows, kRowsToClear);
  int64_t items = clearing_items_;
  for (int i = 0; i < products_.count; ++i) {
    parts_[i] = divide(products_.of[i]);
    items += parts_[i].count;
  }
  return items;
}

HeadEvaluation::Parts HeadEvaluation::divide(const Product& product) {
  const int64_t wanted = kPartsPerThread * Pool::shared().threads();
  const int64_t per_column = divide_up(product.rows, kProductRows);
  const int64_t fair = std::max<int64_t>(divide_up(product.columns * per_column, wanted), 1);
  const int64_t columns =
      std::min<int64_t>(divide_up(fair, kMostTileColumns) * kMostTileColumns, kProductColumns);
  return {columns, per_column, per_column * divide_up(product.columns, columns)};
}

void HeadEvaluation::work(int64_t item) {
  if (check_abort()) return;
  if (item < clearing_items_)
    return clear_ignored_rows(item * kRowsToClear, std::min((item + 1) * kRowsToClear, call_.rows));
  item -= clearing_items_;
  int i = 0;
  while (item >= parts_[i].count) item -= parts_[i++].count;
  compute(products_.of[i], parts_[i], item);
}

void HeadEvaluation::compute(const Product& product, const Parts& parts, int64_t part) {
  // Neighbouring parts have the same columns, so threads read the same ones at nearly the same time.
  const int64_t row = part % parts.per_column * kProductRows;
  const int64_t column = part / parts.per_column * parts.columns;
  const std::unique_ptr<ProductMemory> memory(new ProductMemory);
  target()->multiply(product,
                     {row, std::min(row + kProductRows, product.rows), column,
                      std::min(column + parts.columns, product.columns)},
                     memory.get());
}

void HeadEvaluation::clear_ignored_rows(int64_t first, int64_t last) const {
  const int64_t bytes = call_.size * size_of(call_.grad_hidden_dtype);
  for (int64_t row = first; row < last; ++row)
    if (call_.targets[row] == kIgnoredTarget)
      std::memset(static_cast<char*>(call_.grad_hidden) + row * bytes, 0, bytes);
}

}  // namespace policy_loss::cpu

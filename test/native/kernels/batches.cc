#include "test/native/kernels/batches.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

namespace kernels_test {
namespace {

uint16_t bfloat16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// Returns the bits of a number in float16, without the digits that do not fit. Numbers below float16's normal
// range become 0, and numbers above its range become Infinity.
uint16_t float16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000;
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127;
  if (exponent == 128) return static_cast<uint16_t>(sign | 0x7c00 | (bits & 0x7fffff ? 0x200 : 0));
  if (exponent < -14) return static_cast<uint16_t>(sign);
  if (exponent > 15) return static_cast<uint16_t>(sign | 0x7c00);
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent + 15) << 10 | (bits >> 13 & 0x3ff));
}

}  // namespace

uint16_t half_bits(float x, DType dtype) {
  return dtype == DType::kBFloat16 ? bfloat16_bits(x) : float16_bits(x);
}

std::string name_of(DType dtype) {
  return dtype == DType::kFloat32 ? "float32" : dtype == DType::kFloat16 ? "float16" : "bfloat16";
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"rows longer than a chunk", 2, 20011, {}},
      {"rows of very many chunks", 2, 5003, {}},
      {"packed rows of very many chunks", 2, 6001, {6001, 4002}},
      {"packed", 8, 3001, {0, 5, 1, 700, 0, 33, 3001, 2}},
      {"rows of whole chunks", 4, 512, {}},
      {"rows of a length not divisible by 4", 6, 37, {}},
      {"tiny rows", 30, 3, {}},
      {"one token", 2, 1, {}},
      {"rows without tokens", 4, 0, {}},
      {"no rows", 0, 7, {}},
  };
  return all;
}

const Shape& shape_named(const std::string& name) {
  return *std::find_if(shapes().begin(), shapes().end(),
                       [&](const Shape& shape) { return shape.name == name; });
}

std::vector<DType> dtypes_of(const Shape& shape) {
  if (shape.rows * shape.row_length == 0) return {DType::kFloat32};
  return {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
}

std::unique_ptr<Batch> draw_batch(const Shape& shape, DType dtype, bool per_row_advantages, unsigned seed) {
  auto batch = std::make_unique<Batch>();
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Layout& layout = batch->view.layout;
  layout.rows = shape.rows;
  layout.row_length = shape.row_length;
  if (!shape.lengths.empty()) {
    batch->offsets.push_back(0);
    for (const int32_t length : shape.lengths) batch->offsets.push_back(batch->offsets.back() + length);
    layout.offsets = batch->offsets.data();
  }
  const int64_t tokens = batch->tokens = layout.tokens();
  for (int64_t i = 0; i < tokens; ++i) batch->mask.push_back(random() % 4 != 0 ? 1 + random() % 255 : 0);
  // Masks a sixth of the batch in one piece, so that some rows, or some tiles (native/cuda/pass.h), have
  // no unmasked token.
  for (int64_t i = tokens / 3; i < tokens / 2; ++i) batch->mask[i] = 0;
  for (int64_t row = 0; row < shape.rows; ++row) batch->expert.push_back(random() % 3 == 0 ? 1 : 0);
  for (int c = 0; c < kColumns; ++c) {
    const bool per_row = c == kAdvantages && per_row_advantages;
    for (int64_t i = 0; i < (per_row ? shape.rows : tokens); ++i) {
      float x = normal(random);
      if (c != kLogprob && c != kAdvantages && c != kEntropy) x = batch->column[kLogprob][i] + 0.2f * x;
      if (c == kLogprob) x = -std::fabs(x);
      if (!per_row && batch->mask[i] == 0)
        x = c == kLogprob ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
      batch->column[c].push_back(x);
    }
    for (const float x : batch->column[c]) batch->half[c].push_back(half_bits(x, dtype));
    batch->view.column[c] = {
        dtype == DType::kFloat32 ? static_cast<const void*>(batch->column[c].data()) : batch->half[c].data(),
        dtype, per_row};
  }
  batch->live = batch->mask;
  batch->view.mask = batch->mask.data();
  batch->view.expert = batch->expert.data();
  return batch;
}

void draw_repeats(Batch* batch, unsigned most, bool pairs, unsigned seed) {
  std::mt19937 random(seed);
  const Layout& layout = batch->view.layout;
  for (int64_t row = 0; row < layout.rows; ++row) batch->repeats.push_back(random() % (most + 1));
  batch->view.repeats = batch->repeats.data();
  for (int64_t row = 0; row < layout.rows; ++row) {
    if (batch->repeats[row] != 0) continue;
    for (int64_t i = layout.begin(row); i < layout.begin(row) + layout.length(row); ++i) {
      batch->live[i] = 0;
      for (int c = 0; c < kColumns && !pairs; ++c)
        batch->column[c][i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

}  // namespace kernels_test

// Makes batches in host memory for the tests of the kernels. Their row lengths are difficult cases for the
// units into which native/cuda/pass.h cuts a batch: chunks, steps and quads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/batch.h"

namespace kernels_test {

using namespace policy_loss;

// A batch for tests. Masked tokens hold NaN or Infinity, because no result may depend on them. `view` points
// into the arrays.
struct Batch {
  std::vector<float> column[kColumns];
  std::vector<uint16_t> half[kColumns];  // the same numbers in float16 or bfloat16
  std::vector<uint8_t> mask, expert;
  std::vector<uint8_t> live;  // per token: unmasked, and in a row that counts
  std::vector<uint32_t> repeats;
  std::vector<int32_t> offsets;
  BatchView view;
  int64_t tokens = 0;
};

struct Shape {
  const char* name;
  int64_t rows, row_length;
  std::vector<int32_t> lengths;  // the lengths of packed rows; empty if rows are padded
};
const std::vector<Shape>& shapes();
const Shape& shape_named(const std::string& name);
// Returns the dtypes with which to test a shape. A shape without tokens needs only one, because its batches
// hold no numbers.
std::vector<DType> dtypes_of(const Shape& shape);

std::unique_ptr<Batch> draw_batch(const Shape& shape, DType dtype, bool per_row_advantages, unsigned seed);

// Draws how often each row counts, from 0 to `most` times. Sets the tokens of rows that count 0 times to NaN,
// unless `pairs` is true: a loss over pairs reads all rows.
void draw_repeats(Batch* batch, unsigned most, bool pairs, unsigned seed);

// Returns the bits of a number in float16 or bfloat16. Digits that do not fit are cut off.
uint16_t half_bits(float x, DType dtype);

std::string name_of(DType dtype);

}  // namespace kernels_test

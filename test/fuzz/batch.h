// Makes batches from a fuzzer's input. A batch can have any layout and any mask. Its columns contain ordinary
// numbers or arbitrary bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "engine/batch.h"
#include "test/fuzz/input.h"

namespace fuzz {

using namespace policy_loss;

// The values of a batch: ordinary ones, as in a training run, or arbitrary bits. Ordinary log-probabilities
// lie between −40 and 0, so that no loss overflows float32. Ordinary advantages and rewards lie between −1000
// and 1000.
enum Values { kOrdinary, kAny };

constexpr double kLeastLogprob = -40;
constexpr double kMostAdvantage = 1000;

inline uint32_t float32_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// A batch for losses or for advantage functions. `view` points into the other members.
struct Batch {
  BatchView view;
  Array<int32_t> offsets;
  Array<uint32_t> wide[kColumns];  // the bits of float32 columns
  Array<uint16_t> half[kColumns];  // the bits of float16 and bfloat16 columns
  Array<uint8_t> mask, expert;
  Array<uint32_t> repeats;
  int64_t tokens = 0;

  bool counts(int64_t row) const { return view.repeats_of(row) != 0; }

  // Sets a value of a column. `bits` are the bits of the value in the column's dtype.
  void set_bits(int column, int64_t i, uint32_t bits) {
    if (view.column[column].dtype == DType::kFloat32)
      wide[column][i] = bits;
    else
      half[column][i] = static_cast<uint16_t>(bits);
  }
};

// Reads the layout of a batch from the fuzzer's input. If `even` is set, the number of rows is even.
void read_layout(Bytes& in, bool even, Batch* batch);
void read_mask(Bytes& in, Random& random, Batch* batch);

// How the numbers of a column are drawn.
struct ColumnForm {
  double low, high;             // the range of its numbers
  const Batch* near = nullptr;  // if not null, the numbers are close to a column of this batch
  int near_column = 0;
  bool may_be_per_row = false;
};
void read_column(Bytes& in, Random& random, Values values, int column, const ColumnForm& form, Batch* batch);

// Changes values in these columns (a bit set) that must not affect any result. These are the values of masked
// tokens and, with rows_that_do_not_count, the values of rows that count 0 times. With keep_signs, negative
// advantages stay negative and the others stay non-negative.
void disturb(Random& random, unsigned columns, bool rows_that_do_not_count, bool keep_signs, Batch* batch);

}  // namespace fuzz

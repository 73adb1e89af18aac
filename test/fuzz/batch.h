// Makes batches from a fuzzer's input: any layout, any mask, and columns of ordinary numbers or of any bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "engine/batch.h"
#include "test/fuzz/input.h"

namespace fuzz {

using namespace policy_loss;

// Whether values are ordinary, as in a training run, or any bits at all. Ordinary log-probabilities are from
// −40 to 0, so that no loss overflows float32. Ordinary advantages and rewards are from −1000 to 1000.
enum Values { kOrdinary, kAny };

constexpr double kLeastLogprob = -40;
constexpr double kMostAdvantage = 1000;

inline uint32_t float32_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// A batch for losses or for advantage functions. `view` points into the arrays.
struct Batch {
  BatchView view;
  Array<int32_t> offsets;
  Array<uint32_t> wide[kColumns];  // the bits of float32 columns
  Array<uint16_t> half[kColumns];  // the bits of float16 and bfloat16 columns
  Array<uint8_t> mask, expert;
  Array<uint32_t> repeats;
  int64_t tokens = 0;

  bool counts(int64_t row) const { return view.repeats_of(row) != 0; }

  // Sets the bits of a value, in the column's dtype.
  void set_bits(int column, int64_t i, uint32_t bits) {
    if (view.column[column].dtype == DType::kFloat32)
      wide[column][i] = bits;
    else
      half[column][i] = static_cast<uint16_t>(bits);
  }
};

// Reads the layout of a batch. even: makes the number of rows even.
void read_layout(Bytes& in, bool even, Batch* batch);
void read_mask(Bytes& in, Random& random, Batch* batch);

// The range and the form of a column's numbers.
struct ColumnForm {
  double low, high;             // the range of its numbers
  const Batch* near = nullptr;  // if not null, its numbers are near those of a column of this batch
  int near_column = 0;
  bool may_be_per_row = false;
};
void read_column(Bytes& in, Random& random, Values values, int column, const ColumnForm& form, Batch* batch);

// Changes values on which no result may depend: those of masked tokens, and with rows_that_do_not_count also
// those of rows that count 0 times. keep_signs: negative advantages stay negative, and the others stay
// non-negative.
void disturb(Random& random, unsigned columns, bool rows_that_do_not_count, bool keep_signs, Batch* batch);

}  // namespace fuzz

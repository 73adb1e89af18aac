#include "test/fuzz/batch.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace fuzz {
namespace {

// Returns the bits of a number in this dtype, rounded towards zero. In float16, numbers below the normal
// range become 0.
uint32_t bits_of(float x, DType dtype) {
  const uint32_t bits = float32_bits(x);
  if (dtype == DType::kFloat32) return bits;
  if (dtype == DType::kBFloat16) return bits >> 16;
  const uint32_t sign = bits >> 16 & 0x8000;
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127;
  return exponent < -14 ? sign : sign | static_cast<uint32_t>(exponent + 15) << 10 | (bits >> 13 & 0x3ff);
}

bool is_negative(const Batch& batch, int column, int64_t i) {
  const bool is_wide = batch.view.column[column].dtype == DType::kFloat32;
  const uint32_t bits = is_wide ? batch.wide[column][i] : static_cast<uint32_t>(batch.half[column][i]) << 16;
  const uint32_t infinity = batch.view.column[column].dtype == DType::kFloat16 ? 0x7c000000 : 0x7f800000;
  return bits > 0x80000000 && bits <= (0x80000000 | infinity);
}

// Returns a special value, such as −0, a denormal number or an end of the range. Some losses treat such
// values as special cases.
float special(Random& random, double low, double high) {
  switch (random.below(6)) {
    case 0:
      return -0.0f;
    case 1:
      return 1e-41f * static_cast<float>(low < 0 ? -1 : 1);
    case 2:
      return static_cast<float>(low);
    case 3:
      return static_cast<float>(high);
    case 4:
      return static_cast<float>(low) * 1e-7f;
    default:
      return 0.0f;
  }
}

// Lengths of rows. They equal, or differ by 1 from, the sizes at which the engine begins a new block, tile or
// chunk, or cuts a row into parts.
constexpr int32_t kLengths[] = {0,    1,    2,     63,    64,    65,    127,   1023,  1024,
                                1025, 2049, 16383, 16384, 16385, 32767, 32768, 32769, 49153};
constexpr int kLengthCount = sizeof kLengths / sizeof kLengths[0];
constexpr int kShortLengths = 11;

}  // namespace

void read_layout(Bytes& in, bool even, Batch* batch) {
  Layout& layout = batch->view.layout;
  std::vector<int32_t> lengths;
  const int form = in.below(8);
  if (form < 2) {  // padded and small
    layout.rows = in.below(9);
    layout.row_length = in.below(80);
  } else if (form == 2) {  // padded, around the ends of blocks and chunks
    layout.rows = in.below(3);
    layout.row_length = kLengths[in.below(kLengthCount)];
  } else if (form == 3) {  // padded, with many rows per chunk
    layout.rows = in.below(4000);
    layout.row_length = in.below(13);
  } else {
    // Packed rows. In form 7, the second row is long.
    layout.rows = in.below(form < 6 ? 12 : 5);
    for (int64_t row = 0; row < layout.rows + 1; ++row) {
      const bool is_long = form == 7 && row == 1;
      const int first = is_long ? kShortLengths : 0;
      const int count = is_long ? kLengthCount - kShortLengths : kShortLengths;
      lengths.push_back(form < 6 ? in.below(140) : kLengths[first + in.below(count)]);
    }
  }
  if (even) layout.rows = layout.rows / 2 * 2;
  if (form >= 4) {
    batch->offsets = Array<int32_t>(layout.rows + 1, in.byte());
    batch->offsets[0] = 0;
    for (int64_t row = 0; row < layout.rows; ++row) {
      batch->offsets[row + 1] = batch->offsets[row] + lengths[row];
      layout.row_length = std::max<int64_t>(layout.row_length, lengths[row]);
    }
    layout.offsets = batch->offsets.data();
  }
  batch->tokens = layout.tokens();
}

void read_mask(Bytes& in, Random& random, Batch* batch) {
  const Layout& layout = batch->view.layout;
  batch->mask = Array<uint8_t>(batch->tokens, in.byte());
  const int form = in.below(5);
  const int64_t odds = 1 + in.below(8);
  for (int64_t row = 0; row < layout.rows; ++row) {
    const int64_t length = layout.length(row);
    const int64_t prompt = random.below(length + 1), end = random.below(length + 1);
    const bool empty = random.below(3) == 0;
    for (int64_t i = 0; i < length; ++i) {
      bool unmasked = false;
      if (form == 0) unmasked = true;
      if (form == 1) unmasked = i >= prompt;
      if (form == 2) unmasked = i < end && !empty;
      if (form == 3) unmasked = random.below(odds + 1) != 0;
      batch->mask[layout.begin(row) + i] =
          unmasked ? static_cast<uint8_t>(1 + random.below(random.below(4) == 0 ? 255 : 1)) : 0;
    }
  }
  batch->view.mask = batch->mask.data();
}

void read_column(Bytes& in, Random& random, Values values, int column, const ColumnForm& form, Batch* batch) {
  const double low = form.low, high = form.high;
  ColumnView& view = batch->view.column[column];
  const int kind = in.byte();
  view.dtype = static_cast<DType>(kind % 4 % 3);
  view.per_row = form.may_be_per_row && kind / 4 % 4 == 0;
  const double spread = std::exp2(-static_cast<double>(kind / 16));
  const int64_t specials = 1 + in.below(64);
  const int64_t size = view.per_row ? batch->view.layout.rows : batch->tokens;
  const int shift = in.byte();
  if (view.dtype == DType::kFloat32)
    batch->wide[column] = Array<uint32_t>(size, shift);
  else
    batch->half[column] = Array<uint16_t>(size, shift);
  view.data = view.dtype == DType::kFloat32 ? static_cast<const void*>(batch->wide[column].data())
                                            : batch->half[column].data();
  const Batch* const near = form.near;
  const bool is_near = near && near->view.column[form.near_column].dtype == DType::kFloat32 &&
                       near->wide[form.near_column].size() == size;
  for (int64_t i = 0; i < size; ++i) {
    if (values == kAny && random.below(specials) == 0) {
      batch->set_bits(column, i, static_cast<uint32_t>(random.next()));
      continue;
    }
    float x = static_cast<float>(low < 0 && high > 0 ? random.between(low, high) * spread
                                 : high == 0         ? low * random.unit() * spread
                                                     : low + (high - low) * random.unit() * spread);
    if (is_near) {
      float center;
      std::memcpy(&center, &near->wide[form.near_column][i], sizeof center);
      x = static_cast<float>(center + random.between(-1, 1) * spread);
      if (!(x >= low)) x = static_cast<float>(low);
      if (x > high) x = static_cast<float>(high);
    }
    if (random.below(specials) == 0) x = special(random, low, high);
    if (low > 0 && x < low) x = static_cast<float>(low);
    batch->set_bits(column, i, bits_of(x, view.dtype));
  }
}

void disturb(Random& random, unsigned columns, bool rows_that_do_not_count, bool keep_signs, Batch* batch) {
  const Layout& layout = batch->view.layout;
  for (int64_t row = 0; row < layout.rows; ++row) {
    const bool whole = rows_that_do_not_count && !batch->counts(row);
    const int64_t begin = layout.begin(row);
    for (int64_t i = begin; i < begin + layout.length(row); ++i) {
      if (batch->mask[i] != 0 && !whole) continue;
      for (int column = 0; column < kColumns; ++column) {
        const ColumnView& view = batch->view.column[column];
        if ((columns >> column & 1) == 0 || !view.data || view.per_row) continue;
        uint32_t bits = static_cast<uint32_t>(random.next());
        if (random.below(2) == 0)
          bits = bits_of(random.below(2) == 0 ? 1e4f : -1e4f, view.dtype) | (bits & 3);
        if (keep_signs && column == kAdvantages && !whole)
          bits = bits_of(is_negative(*batch, column, i) ? -7.0f : 7.0f, view.dtype);
        batch->set_bits(column, i, bits);
      }
    }
  }
}

}  // namespace fuzz

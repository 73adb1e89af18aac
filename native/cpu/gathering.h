// What the selections of programs gather of the kept values (see cpu/select.h), as plain structs.
#pragma once

#include <cstdint>

namespace policy_loss::cpu {

class KeptValues;

// A kept value that is being searched: its key (see program/select.h), and its token.
struct KeptToken {
  int64_t row;
  int32_t position;
  uint32_t key;
};

// The number of a row's values that are less than the limits of a search, and that equal one of them.
struct RowCounts {
  int32_t less, at_low, at_high;
};

// A count of values, and the sum of their significands.
struct BinSums {
  uint64_t count, significands;
};

// What a pass gathers of the values that one row_keep keeps.
struct Gathering {
  int kept;            // the row value of row_keep
  int segment;         // the segment that has row_keep
  KeptValues* to;      // receives what is gathered
  int64_t sample = 0;  // if not 0, the pass takes only the first kBlock of this many tokens each
  // Whether the pass collects the candidates: the values between `low` and `high`. A limit that is NaN does
  // not apply.
  bool collects = false;
  float low = 0, high = 0;
  RowCounts* rows = nullptr;  // receives the counts of each row; null if not wanted
  // Whether the pass sorts the values whose keys begin with the digits found so far into bins, by their next
  // digit.
  bool counts = false;
  uint32_t digits = 0, digits_mask = 0;
  int shift = 0;
  uint32_t bin_mask = 0;
};

// Take what a pass has gathered. Several threads may call them at the same time.
void take_candidates(KeptValues* to, const KeptToken* candidates, int n);
void take_bins(KeptValues* to, const BinSums* bins);

}  // namespace policy_loss::cpu

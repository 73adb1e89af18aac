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

// The number of a row's values that are less than the limits of a search, and that equal one of them; and the
// sum of the values that are less.
struct RowCounts {
  int32_t less, at_low, at_high;
  double sum;
};

// What a pass gathers of the values that one row_keep keeps.
struct Gathering {
  int kept;            // the row value of row_keep
  int segment;         // the segment that has row_keep
  KeptValues* to;      // receives what is gathered
  int64_t sample = 0;  // if not 0, the pass takes only the first kBlock of this many tokens each
  // The pass collects the candidates: the values between `low` and `high`. A limit that is NaN does not
  // apply.
  float low = 0, high = 0;
  RowCounts* rows = nullptr;  // receives the counts of each row; null if not wanted
  bool sums = false;          // whether the sums of the values are wanted, too
  bool reduces = false;       // whether the reductions over the sample of a row are its row values
};

// Takes candidates that a pass has collected. Several threads may call it at the same time.
void take_candidates(KeptValues* to, const KeptToken* candidates, int n);

}  // namespace policy_loss::cpu

#include "cpu/select.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "program/select.h"

namespace policy_loss::cpu {
namespace {

// A value that is being searched: its key, and how often it counts.
struct Candidate {
  uint32_t key, repeats;
};

// Counts the values whose keys begin with the digits found so far, by their next digit.
class Bins {
 public:
  void add(const Search& search, uint32_t key, uint64_t repeats) {
    Bin& bin = bins_[search.bin_of(key)];
    bin.count += repeats;
    bin.significands += repeats * significand_of(key);
  }
  const Bin* data() const { return bins_; }

 private:
  Bin bins_[kMaxBins] = {};
};

// Calls visit(row, values, n, repeats) for each row that has values.
template <class Visit>
void for_rows(const TokenPass& pass, int kept, Visit visit) {
  for (int64_t row = 0; row < pass.batch->layout.rows; ++row) {
    const uint32_t repeats = pass.batch->repeats_of(row);
    const int64_t n = pass.row_tokens[row];
    if (repeats > 0 && n > 0) visit(row, kept_values(pass, kept, row), n, repeats);
  }
}

bool is_rank(program::Op op) {
  return op == program::Op::k_rows_rank || op == program::Op::k_rows_rank_at;
}

// Adds the wanted ones among a row's values to the candidates.
template <class Wanted>
void collect(const float* values, int64_t n, uint32_t repeats, std::vector<Candidate>* candidates,
             Wanted wanted) {
  constexpr int64_t kBlock = 1024;
  Candidate block[kBlock];
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t size = std::min(n - at, kBlock);
    int found = 0;
    for (int64_t i = 0; i < size; ++i) {
      block[found] = {key_of(values[at + i]), repeats};
      found += wanted(block[found].key) ? 1 : 0;
    }
    candidates->insert(candidates->end(), block, block + found);
  }
}

// A range of keys, and how many values have keys below it, at its ends and between them. The candidates are
// those between the ends, so a range of few keys needs little memory even if many values are equal.
struct Range {
  Range(uint32_t low, uint32_t high) : low(low), high(high) {}

  const uint32_t low, high;
  uint64_t below = 0, at_low = 0, between = 0, at_high = 0;
  std::vector<Candidate> candidates;

  uint64_t end() const { return below + at_low + between + at_high; }

  void add(const float* values, int64_t n, uint32_t repeats) {
    int64_t less = 0, low_ends = 0, high_ends = 0;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t key = key_of(values[i]);
      less += key < low ? 1 : 0;
      low_ends += key == low ? 1 : 0;
      high_ends += key == high ? 1 : 0;
    }
    const size_t before = candidates.size();
    collect(values, n, repeats, &candidates, [&](uint32_t key) { return key > low && key < high; });
    below += uint64_t{repeats} * less;
    at_low += uint64_t{repeats} * low_ends;
    at_high += low == high ? 0 : uint64_t{repeats} * high_ends;
    between += uint64_t{repeats} * (candidates.size() - before);
  }
};

Range range_between(const TokenPass& pass, int kept, uint32_t low, uint32_t high) {
  Range range(low, high);
  for_rows(pass, kept,
           [&](int64_t, const float* values, int64_t n, uint32_t repeats) { range.add(values, n, repeats); });
  return range;
}

// Returns a range with the value of the rank. A sample tells between which keys that value probably is, so
// that only few values are searched.
Range range_of_rank(const TokenPass& pass, int kept, double rank, double total) {
  constexpr double kSample = 4096;
  std::vector<uint32_t> sample;
  const auto step = static_cast<int64_t>(total / kSample) + 1;
  int64_t next = 0;
  for_rows(pass, kept, [&](int64_t, const float* values, int64_t n, uint32_t) {
    for (; next < n; next += step) sample.push_back(key_of(values[next]));
    next -= n;
  });
  std::sort(sample.begin(), sample.end());
  // Four standard deviations of the rank in a sample, and some more for a rank near the ends.
  const auto size = static_cast<double>(sample.size());
  const double share = (rank + 0.5) / total;
  const double reach = 4 * std::sqrt(size * share * (1 - share)) + 4;
  const double first = share * size - reach, last = share * size + reach;
  const uint32_t low = first < 0 ? 0 : sample[static_cast<size_t>(first)];
  const uint32_t high = last >= size ? ~0u : sample[static_cast<size_t>(last)];
  Range range = range_between(pass, kept, low, high);
  if (rank >= static_cast<double>(range.below) && rank < static_cast<double>(range.end())) return range;
  return range_between(pass, kept, 0, ~0u);
}

// Finds the remaining digits among the candidates.
void finish(const std::vector<Candidate>& candidates, Search* search) {
  while (!search->is_done()) {
    Bins bins;
    for (const Candidate& x : candidates)
      if (search->includes(x.key)) bins.add(*search, x.key, x.repeats);
    search->choose(bins.data());
  }
}

// Returns the position of unmasked token number n of a row.
int64_t position_of(const BatchView& batch, int64_t row, int64_t n) {
  const uint8_t* const mask = batch.mask + batch.layout.begin(row);
  int64_t position = 0;
  for (int64_t left = n; mask[position] == 0 || left-- > 0;) ++position;
  return position;
}

// Returns the place of a token whose value has the key. `left` values with this key come before it.
double place_of(const TokenPass& pass, int kept, uint32_t key, double left) {
  double place = -1;
  for_rows(pass, kept, [&](int64_t row, const float* values, int64_t n, uint32_t repeats) {
    if (left < 0) return;
    int64_t equal = 0;
    for (int64_t i = 0; i < n; ++i) equal += key_of(values[i]) == key ? 1 : 0;
    if (left >= static_cast<double>(equal) * repeats) {
      left -= static_cast<double>(equal) * repeats;
      return;
    }
    int64_t number = -1;
    while (left >= 0)
      if (key_of(values[++number]) == key) left -= repeats;
    place = static_cast<double>(row) * program::kPlacesPerRow +
            static_cast<double>(position_of(*pass.batch, row, number));
  });
  return place;
}

double select_rank(const TokenPass& pass, program::Op op, int kept, double by) {
  const bool wants_place = op == program::Op::k_rows_rank_at;
  double total = 0;
  for_rows(pass, kept, [&](int64_t, const float*, int64_t n, uint32_t repeats) {
    total += static_cast<double>(n) * repeats;
  });
  if (total == 0) return wants_place ? -1 : 0;
  const double rank = existing_rank(by, total);
  const Range range = range_of_rank(pass, kept, rank, total);
  uint32_t key = range.low;
  double left = rank - static_cast<double>(range.below);
  if (left >= static_cast<double>(range.at_low)) {
    left -= static_cast<double>(range.at_low);
    if (left < static_cast<double>(range.between)) {
      Search search(op, left);
      finish(range.candidates, &search);
      key = search.key();
      left = search.rank_among_ties();
    } else {
      key = range.high;
      left -= static_cast<double>(range.between);
    }
  }
  return wants_place ? place_of(pass, kept, key, left) : static_cast<double>(value_of(key));
}

double select_by_sum(const TokenPass& pass, program::Op op, int kept, double by) {
  Search search(op, by);
  Bins bins;
  for_rows(pass, kept, [&](int64_t, const float* values, int64_t n, uint32_t repeats) {
    for (int64_t i = 0; i < n; ++i) bins.add(search, key_of(values[i]), repeats);
  });
  search.choose(bins.data());
  // The values whose keys begin with the digit.
  std::vector<Candidate> candidates;
  for_rows(pass, kept, [&](int64_t, const float* values, int64_t n, uint32_t repeats) {
    collect(values, n, repeats, &candidates, [&](uint32_t key) { return search.includes(key); });
  });
  finish(candidates, &search);
  return search.result();
}

}  // namespace

double select_in_row(const float* values, int64_t n, double by) {
  if (n == 0) return 0;
  const double rank = existing_rank(by, static_cast<double>(n));
  // Counts the values by the first digits of their keys, and then searches those that have the same ones.
  constexpr int kShift = 20;
  uint32_t counts[1 << (32 - kShift)] = {};
  for (int64_t i = 0; i < n; ++i) ++counts[key_of(values[i]) >> kShift];
  auto left = static_cast<int64_t>(rank);
  uint32_t digits = 0;
  for (; left >= counts[digits]; ++digits) left -= counts[digits];
  std::vector<uint32_t> keys(counts[digits] + 1);
  size_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    keys[found] = key_of(values[i]);
    found += keys[found] >> kShift == digits ? 1 : 0;
  }
  std::nth_element(keys.begin(), keys.begin() + left, keys.begin() + static_cast<int64_t>(found));
  return static_cast<double>(value_of(keys[left]));
}

double select_over_rows(const TokenPass& pass, program::Op op, int kept, double by) {
  return is_rank(op) ? select_rank(pass, op, kept, by) : select_by_sum(pass, op, kept, by);
}

}  // namespace policy_loss::cpu

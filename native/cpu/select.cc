#include "cpu/select.h"

#include <algorithm>
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

// Finds the first digit of a rank, which takes no sums. Neighbouring values often have the same digit, so
// they are counted in different arrays: an addition then does not wait for the one before it.
void choose_first_of_rank(const TokenPass& pass, int kept, Search* search) {
  constexpr int kArrays = 4;
  Bin bins[kMaxBins] = {};
  for_rows(pass, kept, [&](int64_t, const float* values, int64_t n, uint32_t repeats) {
    uint32_t counts[kArrays][kMaxBins] = {};
    int64_t i = 0;
    for (; i + kArrays <= n; i += kArrays)
      for (int a = 0; a < kArrays; ++a) ++counts[a][search->bin_of(key_of(values[i + a]))];
    for (; i < n; ++i) ++counts[0][search->bin_of(key_of(values[i]))];
    for (int b = 0; b < kMaxBins; ++b)
      for (int a = 0; a < kArrays; ++a) bins[b].count += uint64_t{repeats} * counts[a][b];
  });
  search->choose(bins);
}

void choose_first(const TokenPass& pass, int kept, Search* search) {
  Bins bins;
  for_rows(pass, kept, [&](int64_t, const float* values, int64_t n, uint32_t repeats) {
    for (int64_t i = 0; i < n; ++i) bins.add(*search, key_of(values[i]), repeats);
  });
  search->choose(bins.data());
}

// Returns the values whose keys begin with the digits found so far.
std::vector<Candidate> candidates_of(const TokenPass& pass, int kept, const Search& search) {
  std::vector<Candidate> candidates;
  size_t count = 0;
  for_rows(pass, kept, [&](int64_t, const float* values, int64_t n, uint32_t repeats) {
    if (candidates.size() < count + n) candidates.resize(2 * (count + n));
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t key = key_of(values[i]);
      candidates[count] = {key, repeats};
      count += search.includes(key) ? 1 : 0;
    }
  });
  candidates.resize(count);
  return candidates;
}

Search search_all(const TokenPass& pass, program::Op op, int kept, double by) {
  Search search(op, by);
  if (op == program::Op::k_rows_rank || op == program::Op::k_rows_rank_at)
    choose_first_of_rank(pass, kept, &search);
  else
    choose_first(pass, kept, &search);
  const std::vector<Candidate> candidates = candidates_of(pass, kept, search);
  while (!search.is_done()) {
    Bins bins;
    for (const Candidate& x : candidates)
      if (search.includes(x.key)) bins.add(search, x.key, x.repeats);
    search.choose(bins.data());
  }
  return search;
}

// Returns the position of unmasked token number n of a row.
int64_t position_of(const BatchView& batch, int64_t row, int64_t n) {
  const uint8_t* const mask = batch.mask + batch.layout.begin(row);
  int64_t position = 0;
  for (int64_t left = n; mask[position] == 0 || left-- > 0;) ++position;
  return position;
}

// Returns the place of the token with the rank that was searched.
double place_of(const TokenPass& pass, int kept, const Search& search) {
  double left = search.rank_among_ties();
  double place = -1;
  for_rows(pass, kept, [&](int64_t row, const float* values, int64_t n, uint32_t repeats) {
    for (int64_t i = 0; i < n && left >= 0; ++i) {
      if (key_of(values[i]) != search.key()) continue;
      left -= repeats;
      if (left < 0)
        place = static_cast<double>(row) * program::kPlacesPerRow +
                static_cast<double>(position_of(*pass.batch, row, i));
    }
  });
  return place;
}

}  // namespace

double select_in_row(const float* values, int64_t n, double rank) {
  if (n == 0) return 0;
  std::vector<uint32_t> keys(n);
  for (int64_t i = 0; i < n; ++i) keys[i] = key_of(values[i]);
  const double last = static_cast<double>(n - 1);
  const auto at = keys.begin() + static_cast<int64_t>(rank >= 0 ? std::min(rank, last) : 0.0);
  std::nth_element(keys.begin(), at, keys.end());
  return static_cast<double>(value_of(*at));
}

double select_over_rows(const TokenPass& pass, program::Op op, int kept, double by) {
  const Search search = search_all(pass, op, kept, by);
  return op == program::Op::k_rows_rank_at ? place_of(pass, kept, search) : search.result();
}

}  // namespace policy_loss::cpu

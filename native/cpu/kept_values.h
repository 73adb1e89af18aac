// The values that passes gather for the selections of programs (see cpu/select.h), and the searches among
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "cpu/engine.h"

namespace policy_loss::cpu {

constexpr float kNoLimit = std::numeric_limits<float>::quiet_NaN();
// All values of a batch with at most this many tokens are candidates.
constexpr int64_t kFewTokens = 1024;
// A sample has the values of every second token of some blocks (kBlock).
constexpr int64_t kBlockTokens = 64;
constexpr int64_t kSampledEvery = 2;
// A sample has at most this many blocks, and at most this share of the tokens is computed for it.
constexpr int64_t kSampleBlocks = 512;
constexpr int64_t kSampleShare = 16;

struct Limits {
  float low = kNoLimit, high = kNoLimit;
};

inline bool is_by_sum(program::Op op) {
  return op == program::Op::k_rows_under_mean || op == program::Op::k_rows_under_fill;
}

// More candidates than this are divided into bins of equal widths before their digits are searched.
constexpr size_t kManyCandidates = 4096;
constexpr int kWidthBits = 9;  // of a bin's number

// Returns the exponent of a positive value in the unit of the sums of significands.
inline int exponent_of(uint32_t key) {
  return std::max(static_cast<int>(key >> 23 & 0xff), 1);
}

// Returns the segment that keeps values in a row value.
inline int segment_of_kept(const program::ProgramView& program, int kept) {
  for (int s = 0; s < program.segment_count; ++s)
    for (int i = program.segments[s].first; i < program.segments[s].last; ++i) {
      const program::Instruction& x = program.instructions[i];
      if (x.op == program::Op::k_row_keep && x.out == kept) return s;
    }
  return -1;
}

// Return the largest value with a smaller key, and the smallest value with a larger key. If no value has such
// a key, they return kNoLimit.
inline float value_below(uint32_t key) {
  // The key before that of 0 belongs to −0, which equals 0.
  return key == 0 ? kNoLimit : value_of(key == key_of(0.0f) ? key - 2 : key - 1);
}
inline float value_above(uint32_t key) {
  return key == ~0u ? kNoLimit : value_of(key + 1);
}

// The key of a kept value that is being searched, and how often the value counts.
struct CountedKey {
  uint32_t key, count;
};

// Sorts keys by their digits of 11 bits, the lowest first, which is several times as fast as std::sort.
inline void sort_keys(std::vector<uint32_t>* keys) {
  constexpr int kBits = 11;
  std::vector<uint32_t> sorted(keys->size());
  for (int shift = 0; shift < 32; shift += kBits) {
    const auto digit_of = [&](uint32_t key) { return key >> shift & ((1u << kBits) - 1); };
    uint32_t ends[(1 << kBits) + 1] = {};
    for (const uint32_t key : *keys) ++ends[digit_of(key) + 1];
    for (int digit = 0; digit < 1 << kBits; ++digit) ends[digit + 1] += ends[digit];
    for (const uint32_t key : *keys) sorted[ends[digit_of(key)]++] = key;
    keys->swap(sorted);
  }
}

// What passes have gathered of the values that one row_keep keeps.
class KeptValues {
 public:
  KeptValues(const TokenPass& pass, int kept, double total)
      : batch_(*pass.batch),
        kept_(kept),
        segment_(segment_of_kept(*pass.program.program, kept)),
        total_(total) {}

  int segment() const { return segment_; }
  Gathering gathering() { return {kept_, segment_, this}; }

  // Destructors call this on the pool's threads. If memory runs out, it therefore does not throw, but
  // end_pass() does.
  void take(const KeptToken* tokens, int n) noexcept {
    std::lock_guard lock(mutex_);
    try {
      if (takes_sample_)
        add_to_sample(tokens, n);
      else
        add_candidates(tokens, n);
    } catch (const std::bad_alloc&) {
      out_of_memory_ = true;
    }
  }

  bool has_sample() const { return has_sample_; }

  // Returns what a pass must gather to sample the values.
  Gathering sample() {
    const int64_t tokens = batch_.layout.tokens();
    Gathering wanted = gathering();
    wanted.sample = std::max(kSampleShare, tokens / (kSampleBlocks * kBlockTokens)) * kBlockTokens;
    wanted.low = wanted.high = kNoLimit;
    takes_sample_ = true;
    sample_.reserve((tokens / wanted.sample + 1) * (kBlockTokens / kSampledEvery));
    return wanted;
  }

  // Returns the share of the batch's unmasked tokens that have been computed for the sample.
  double sampled_share() const { return static_cast<double>(computed_) / total_; }

  // Returns limits that probably enclose the value with a rank. A larger `width` gives wider limits.
  Limits limits_around(double rank, double width) {
    if (batch_.layout.tokens() <= kFewTokens) return {};
    const auto size = static_cast<double>(sample_.size());
    const double share = (rank + 0.5) / total_;
    // 2.5 standard deviations of the rank in a sample of independent values, and some more for a rank near
    // the ends. One time in eighty, and if the values of a row depend on each other, that takes another
    // attempt.
    const double reach = width * (2.5 * std::sqrt(size * share * (1 - share)) + 8);
    const double first = share * size - reach, last = share * size + reach;
    Limits limits;
    if (first >= 0) limits.low = value_of(sample_[static_cast<size_t>(first)]);
    if (last < size) limits.high = value_of(sample_[static_cast<size_t>(last)]);
    const auto expected = static_cast<size_t>(std::min(2.2 * reach / size, 1.0) * total_);
    candidates_.reserve(expected);
    places_.reserve(expected);
    return limits;
  }

  // Returns the rank that a selection by a sum will probably find, from the sample.
  double rank_by_sum(program::Op op, double by) const {
    const auto size = static_cast<double>(sample_.size());
    Search search(op, op == program::Op::k_rows_under_fill ? by * size / total_ : by);
    search.start_above(0, 0, 0, size);
    for (const uint32_t key : sample_)
      if (search.ends_at(key, 1)) return std::min(search.result() / size * total_, total_ - 1);
    return total_ - 1;
  }

  // Has a pass collect the values between limits.
  void collect_between(const Limits& limits, Gathering* wanted) {
    limits_ = limits;
    candidates_.clear();
    places_.clear();
    bins_.clear();
    counts_.assign(batch_.layout.rows, {});
    has_candidates_ = false;
    searched_.reset();
    wanted->low = limits.low;
    wanted->high = limits.high;
    wanted->rows = counts_.data();
  }

  // Ends a pass that has gathered values. Throws std::bad_alloc if there was no memory for them.
  void end_pass(const Gathering& gathered) {
    check_memory();
    if (std::exchange(takes_sample_, false)) {
      sort_keys(&sample_);
      has_sample_ = true;
      return;
    }
    has_candidates_ = true;
    has_sum_ = gathered.sums || std::isnan(limits_.low);
    less_ = at_low_ = at_high_ = between_ = 0;
    sum_ = 0;
    for (int64_t row = 0; row < batch_.layout.rows; ++row) {
      const uint64_t repeats = batch_.repeats_of(row);
      less_ += repeats * counts_[row].less;
      at_low_ += repeats * counts_[row].at_low;
      at_high_ += repeats * counts_[row].at_high;
      sum_ += static_cast<double>(repeats) * counts_[row].sum;
    }
    for (const CountedKey& x : candidates_) between_ += x.count;
  }

  // Returns whether the value with a rank is a candidate or equals a limit.
  bool encloses(double rank) const {
    return has_candidates_ && rank >= static_cast<double>(less_) && rank < found();
  }

  // Returns whether all values are candidates.
  bool has_all() const { return has_candidates_ && std::isnan(limits_.low) && std::isnan(limits_.high); }
  // Returns how many values the last pass has found.
  double found() const { return static_cast<double>(less_ + at_low_ + between_ + at_high_); }

  // Finds the result of a selection by a sum. Returns false if it is not between the limits, or at one.
  bool find_by_sum(program::Op op, double by, double* result) {
    if (!has_candidates_ || !has_sum_) return false;
    Search search(op, by);
    if (std::isnan(limits_.low)) {
      search.start_above(0, 0, 0, total_);
    } else {
      const uint32_t low = key_of(limits_.low);
      if (!search.start_above(low - 1, static_cast<double>(less_), sum_, total_)) return false;
      if (search.ends_at(low, static_cast<double>(at_low_))) {
        *result = search.result();
        return true;
      }
    }
    Search beyond = search;
    search_candidates(&search);
    if (!std::isnan(limits_.high) && (search.is_missing() || search.key() >= key_of(limits_.high))) {
      beyond.leave_out(static_cast<double>(between_), sum_of_candidates());
      if (!beyond.ends_at(key_of(limits_.high), static_cast<double>(at_high_))) return false;
      search = beyond;
    }
    *result = search.result();
    return true;
  }

  // Returns the value with a rank that is enclosed, or the place of its token.
  double value_at(const TokenPass& pass, double rank, bool wants_place) {
    double left = rank - static_cast<double>(less_);
    if (left < static_cast<double>(at_low_)) return value_at_limit(pass, limits_.low, left, wants_place);
    left -= static_cast<double>(at_low_);
    if (left >= static_cast<double>(between_))
      return value_at_limit(pass, limits_.high, left - static_cast<double>(between_), wants_place);
    if (!searched_ || searched_rank_ != rank) {
      searched_.emplace(program::Op::k_rows_rank, left);
      searched_rank_ = rank;
      searched_->start_above(0, 0, 0, static_cast<double>(between_));
      search_candidates(&*searched_);
    }
    if (!wants_place) return searched_->result();
    return place_among_ties(searched_->key(), searched_->rank_among_ties());
  }

 private:
  void add_to_sample(const KeptToken* tokens, int n) {
    const size_t size = sample_.size();
    sample_.resize(size + n);
    uint32_t* to = sample_.data() + size;
    for (int i = 0; i < n; ++i) {
      *to = tokens[i].key;
      to += tokens[i].position % kSampledEvery == 0 ? 1 : 0;
      computed_ += batch_.repeats_of(tokens[i].row);
    }
    sample_.resize(to - sample_.data());
  }

  void add_candidates(const KeptToken* tokens, int n) {
    const size_t size = candidates_.size();
    candidates_.resize(size + n);
    places_.resize(size + n);
    for (int i = 0; i < n; ++i) {
      const auto& [row, position, key] = tokens[i];
      candidates_[size + i] = {key, batch_.repeats_of(row)};
      places_[size + i] = static_cast<double>(row) * program::kPlacesPerRow + position;
    }
  }

  void check_memory() const {
    if (out_of_memory_) throw std::bad_alloc();
  }

  // Searches all candidates. The search has begun above the lower limit.
  void search_candidates(Search* search) {
    std::vector<CountedKey> left;
    finish(narrow(search, &left) ? left : candidates_, search);
  }

  // Divides many candidates into bins, and takes those of the bin that has the result. Returns false if that
  // is not possible.
  bool narrow(Search* search, std::vector<CountedKey>* left) {
    if (candidates_.size() <= kManyCandidates || !(limits_.low >= 0) || std::isnan(limits_.high))
      return false;
    // The sums of more shifted significands could overflow.
    if (between_ > uint64_t{1} << 31) return false;
    const uint32_t first = key_of(limits_.low) + 1, last = key_of(limits_.high) - 1;
    if (first >= last || exponent_of(last) > exponent_of(first) + 8) return false;
    const int shift = std::max(0, 32 - __builtin_clz(last - first) - kWidthBits);
    if (bins_.empty()) bins_ = bins_of_candidates(first, shift);
    const double unit = unit_of(first);
    for (uint32_t b = 0; b <= (last - first) >> shift; ++b) {
      const uint32_t end = std::min(last, first + (b << shift) + ((1u << shift) - 1u));
      if (!search->is_among(end, static_cast<double>(bins_[b].count),
                            static_cast<double>(bins_[b].significands) * unit))
        continue;
      std::copy_if(candidates_.begin(), candidates_.end(), std::back_inserter(*left),
                   [&](const CountedKey& x) { return (x.key - first) >> shift == b; });
      break;
    }
    return true;
  }

  // Counts the candidates by the bits of their keys from `shift` on, and adds up their significands in the
  // unit of those of the key `first`. The sums are integers, because threads collect the candidates in any
  // order.
  std::vector<Bin> bins_of_candidates(uint32_t first, int shift) const {
    std::vector<Bin> bins(1 << kWidthBits);
    const int exponent = exponent_of(first);
    for (const auto& [key, count] : candidates_) {
      Bin& bin = bins[(key - first) >> shift];
      bin.count += count;
      bin.significands += count * (uint64_t{significand_of(key)} << (exponent_of(key) - exponent));
    }
    return bins;
  }

  // Returns the sum of the candidates. It does not depend on their order.
  double sum_of_candidates() const {
    constexpr int digit = 0;
    uint64_t significands[digit_bins(digit)] = {};
    for (const auto& [key, count] : candidates_)
      significands[key >> digit_shift(digit)] += count * uint64_t{significand_of(key)};
    double sum = 0;
    for (uint32_t bin = 0; bin < digit_bins(digit); ++bin)
      if (significands[bin] > 0)
        sum += static_cast<double>(significands[bin]) * unit_of(bin << digit_shift(digit));
    return sum;
  }

  // Finds the remaining digits of a search among keys.
  static void finish(const std::vector<CountedKey>& keys, Search* search) {
    const std::vector<CountedKey>* among = &keys;
    for (std::vector<CountedKey> left; !search->is_done();) {
      // Copying the included ones costs more than passing over the others unless these are many.
      if (search->mask() != 0 && search->found() * 4 < static_cast<double>(among->size())) {
        std::vector<CountedKey> included;
        std::copy_if(among->begin(), among->end(), std::back_inserter(included),
                     [&](const CountedKey& x) { return search->includes(x.key); });
        left.swap(included);
        among = &left;
      }
      Bin bins[kMaxBins] = {};
      for (const auto& [key, count] : *among) {
        if (!search->includes(key)) continue;
        Bin& bin = bins[search->bin_of(key)];
        bin.count += count;
        bin.significands += uint64_t{count} * significand_of(key);
      }
      search->choose(bins);
    }
  }

  // Returns the place of the token with a rank among the candidates with a key.
  double place_among_ties(uint32_t key, double rank) const {
    std::vector<std::pair<double, uint32_t>> ties;  // the places, and how often each counts
    for (size_t i = 0; i < candidates_.size(); ++i)
      if (candidates_[i].key == key) ties.emplace_back(places_[i], candidates_[i].count);
    // They often are in order already, as one thread collects many of them.
    if (!std::is_sorted(ties.begin(), ties.end())) std::sort(ties.begin(), ties.end());
    for (const auto& [place, count] : ties) {
      rank -= count;
      if (rank < 0) return place;
    }
    return -1;
  }

  // Returns a limit that values equal, or the place of the token with a rank among these values.
  double value_at_limit(const TokenPass& pass, float limit, double rank, bool wants_place) const {
    if (!wants_place) return static_cast<double>(value_of(key_of(limit)));
    const bool is_low = limit == limits_.low;
    int64_t row = 0;
    for (;; ++row) {
      const int32_t ties = is_low ? counts_[row].at_low : counts_[row].at_high;
      const double count = static_cast<double>(ties) * batch_.repeats_of(row);
      if (rank < count) break;
      rank -= count;
    }
    // Collects the ties in this row.
    KeptValues of_row(pass, kept_, total_);
    Gathering wanted = of_row.gathering();
    wanted.low = value_below(key_of(limit));
    wanted.high = value_above(key_of(limit));
    TokenPass of_segment = pass;
    of_segment.program.first_segment = segment_;
    of_segment.program.last_segment = segment_ + 1;
    of_segment.program.gathering = &wanted;
    const Chunk chunk = {row, row + 1, 0, -1};
    RowMemory memory;
    memory.give(&of_segment, chunk);
    target()->program_pass(of_segment, chunk);
    of_row.check_memory();
    return of_row.place_among_ties(key_of(limit), rank);
  }

  const BatchView& batch_;
  const int kept_, segment_;
  const double total_;  // the number of values
  bool has_sample_ = false;

  std::mutex mutex_;  // protects what threads write: the next flag, the sample and the candidates
  bool out_of_memory_ = false;
  bool takes_sample_ = false;     // whether the threads take a sample
  std::vector<uint32_t> sample_;  // keys, which are sorted when the sample is complete
  uint64_t computed_ = 0;         // the unmasked tokens that were computed for it, as often as they count
  // The values between the limits with the places of their tokens, and how many other values there are.
  bool has_candidates_ = false;
  Limits limits_;
  std::vector<CountedKey> candidates_;
  std::vector<double> places_;
  std::vector<Bin> bins_;  // the candidates by their keys; empty before a search needs them
  std::vector<RowCounts> counts_;
  uint64_t less_ = 0, at_low_ = 0, between_ = 0, at_high_ = 0;
  bool has_sum_ = false;
  double sum_ = 0;  // of the values below the lower limit
  // The last search for a rank among the candidates. Programs ask for a value first, and then for its place.
  std::optional<Search> searched_;
  double searched_rank_ = 0;
};

}  // namespace policy_loss::cpu

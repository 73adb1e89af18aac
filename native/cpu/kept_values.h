// The values that passes gather for the selections of programs (see cpu/select.h), and the searches among
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "cpu/engine.h"

namespace policy_loss::cpu {

constexpr float kNoLimit = std::numeric_limits<float>::quiet_NaN();
// All values of a batch with at most this many tokens are candidates.
constexpr int64_t kFewTokens = 1024;
// The tokens of a block (kBlock), of which a pass samples all, and how many of their values the sample keeps.
constexpr int64_t kBlockTokens = 64;
constexpr int64_t kSampledOfBlock = 32;
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
  void take(const KeptToken* candidates, int n) noexcept {
    std::lock_guard lock(mutex_);
    try {
      candidates_.insert(candidates_.end(), candidates, candidates + n);
    } catch (const std::bad_alloc&) {
      out_of_memory_ = true;
    }
  }

  // Samples the values, unless that has been done, with the segments of a pass up to the one that keeps them.
  void sample(TokenPass pass, int first_segment) {
    if (has_sample_) return;
    pass.program.first_segment = first_segment;
    pass.program.last_segment = segment_ + 1;
    take_sample(pass, gathering());
  }

  // Samples the values, and returns an estimate of a batch value that the pass will compute from sums over
  // rows. The pass must not have other token segments after the one that keeps the values.
  double sample_and_estimate(TokenPass pass, int batch_value) {
    ProgramPass& p = pass.program;
    const program::ProgramView& program = *p.program;
    const int64_t stride = row_stride(program), rows = batch_.layout.rows;
    std::vector<double> row_values(p.row_values, p.row_values + rows * stride);
    std::vector<double> batch_values(p.batch_values, p.batch_values + program.batch_values);
    p.row_values = row_values.data();
    p.batch_values = batch_values.data();
    const auto for_operands = [&](const auto& change) {
      for (int64_t row = 0; row < rows; ++row)
        std::for_each_n(row_values.begin() + row * stride + program.row_values, program.batch_values, change);
    };
    // Rows without sampled tokens are not computed, so they add 0 to sums over rows.
    for_operands([](double& x) { x = 0; });
    Gathering wanted = gathering();
    wanted.reduces = true;
    const double share = take_sample(pass, wanted) / total_;
    for_operands([&](double& x) { x /= share; });
    target()->program_batch(pass);
    return batch_values[batch_value];
  }

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
    if (first >= 0) limits.low = value_of(key_in_sample(static_cast<size_t>(first)));
    if (last < size) limits.high = value_of(key_in_sample(static_cast<size_t>(last)));
    candidates_.reserve(static_cast<size_t>(std::min(2.2 * reach / size, 1.0) * total_));
    return limits;
  }

  // Returns the rank that a selection by a sum will probably find, from the sample.
  double rank_by_sum(program::Op op, double by) {
    const auto size = static_cast<double>(sample_.size());
    if (size == 0) return total_ - 1;
    Search search(op, op == program::Op::k_rows_under_fill ? by * size / total_ : by);
    finish(sample_, false, &search);
    return std::min(search.result() / size * total_, total_ - 1);
  }

  // Has a pass collect the values between limits.
  void collect_between(const Limits& limits, Gathering* wanted) {
    limits_ = limits;
    candidates_.clear();
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
    for (const KeptToken& x : candidates_) between_ += batch_.repeats_of(x.row);
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
  bool find_by_sum(program::Op op, double by, double* result) const {
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
    return place_among(candidates_, searched_->key(), searched_->rank_among_ties());
  }

 private:
  // Samples the values with the segments of a pass. Returns how many unmasked tokens have been computed, each
  // as often as its row counts.
  double take_sample(const TokenPass& pass, Gathering wanted) {
    has_sample_ = true;
    const int64_t tokens = batch_.layout.tokens();
    wanted.sample = std::max(kSampleShare, tokens / (kSampleBlocks * kBlockTokens)) * kBlockTokens;
    collect_between({}, &wanted);
    wanted.rows = nullptr;
    fetch_sample(pass.program.program->columns, wanted.sample);
    run_here(pass, wanted, {0, batch_.layout.rows, 0, -1});
    for (size_t i = 0; i < candidates_.size(); i += kBlockTokens / kSampledOfBlock)
      sample_.push_back({candidates_[i].row, candidates_[i].position, candidates_[i].key});
    double computed = 0;
    for (const KeptToken& x : candidates_) computed += batch_.repeats_of(x.row);
    candidates_.clear();
    return computed;
  }

  // Prefetches the sampled tokens of columns, because a processor does not foresee where they are.
  void fetch_sample(unsigned columns, int64_t distance) const {
    const auto fetch = [&](const void* data, int64_t size) {
      for (int64_t at = 0; data && at < batch_.layout.tokens(); at += distance)
        for (int64_t byte = 0; byte < kBlockTokens * size; byte += 64)
          __builtin_prefetch(static_cast<const char*>(data) + at * size + byte);
    };
    fetch(batch_.mask, 1);
    for (int c = 0; c < kColumns; ++c)
      if ((columns & reads(c)) != 0 && !batch_.column[c].per_row)
        fetch(batch_.column[c].data, size_of(batch_.column[c].dtype));
  }

  static void run_here(TokenPass pass, const Gathering& wanted, const Chunk& chunk) {
    pass.program.gathering = &wanted;
    RowMemory memory;
    memory.give(&pass, chunk);
    target()->program_pass(pass, chunk);
    wanted.to->check_memory();
  }

  void check_memory() const {
    if (out_of_memory_) throw std::bad_alloc();
  }

  uint32_t key_in_sample(size_t rank) {
    std::nth_element(sample_.begin(), sample_.begin() + static_cast<int64_t>(rank), sample_.end(),
                     [](const KeptToken& a, const KeptToken& b) { return a.key < b.key; });
    return sample_[rank].key;
  }

  // Searches all candidates. The search has begun above the lower limit.
  void search_candidates(Search* search) const {
    std::vector<KeptToken> left;
    finish(narrow(search, &left) ? left : candidates_, true, search);
  }

  // Divides many candidates into bins, and takes those of the bin that has the result. Returns false if that
  // is not possible. The sums are integers, because threads collect the candidates in any order.
  bool narrow(Search* search, std::vector<KeptToken>* left) const {
    if (candidates_.size() <= kManyCandidates || !(limits_.low >= 0) || std::isnan(limits_.high))
      return false;
    // The sums of more shifted significands could overflow.
    if (between_ > uint64_t{1} << 31) return false;
    const uint32_t first = key_of(limits_.low) + 1, last = key_of(limits_.high) - 1;
    const int exponent = exponent_of(first);
    if (first >= last || exponent_of(last) > exponent + 8) return false;
    const int shift = std::max(0, 32 - __builtin_clz(last - first) - kWidthBits);
    Bin bins[1 << kWidthBits] = {};
    for (const KeptToken& x : candidates_) {
      const uint64_t count = batch_.repeats_of(x.row);
      Bin& bin = bins[(x.key - first) >> shift];
      bin.count += count;
      bin.significands += count * (uint64_t{significand_of(x.key)} << (exponent_of(x.key) - exponent));
    }
    const double unit = unit_of(first);
    for (uint32_t b = 0; b <= (last - first) >> shift; ++b) {
      const uint32_t end = std::min(last, first + (b << shift) + ((1u << shift) - 1u));
      if (!search->is_among(end, static_cast<double>(bins[b].count),
                            static_cast<double>(bins[b].significands) * unit))
        continue;
      std::copy_if(candidates_.begin(), candidates_.end(), std::back_inserter(*left),
                   [&](const KeptToken& x) { return (x.key - first) >> shift == b; });
      break;
    }
    return true;
  }

  // Returns the sum of the candidates. It does not depend on their order.
  double sum_of_candidates() const {
    constexpr int digit = 0;
    uint64_t significands[digit_bins(digit)] = {};
    for (const KeptToken& x : candidates_)
      significands[x.key >> digit_shift(digit)] += batch_.repeats_of(x.row) * uint64_t{significand_of(x.key)};
    double sum = 0;
    for (uint32_t bin = 0; bin < digit_bins(digit); ++bin)
      if (significands[bin] > 0)
        sum += static_cast<double>(significands[bin]) * unit_of(bin << digit_shift(digit));
    return sum;
  }

  // Finds the remaining digits of a search among candidates. With `repeats`, each counts as often as its row.
  void finish(const std::vector<KeptToken>& candidates, bool repeats, Search* search) const {
    const std::vector<KeptToken>* among = &candidates;
    for (std::vector<KeptToken> left; !search->is_done();) {
      // Copying the included ones costs more than passing over the others unless these are many.
      if (search->mask() != 0 && search->found() * 4 < static_cast<double>(among->size())) {
        std::vector<KeptToken> included;
        std::copy_if(among->begin(), among->end(), std::back_inserter(included),
                     [&](const KeptToken& x) { return search->includes(x.key); });
        left.swap(included);
        among = &left;
      }
      Bin bins[kMaxBins] = {};
      for (const KeptToken& x : *among) {
        if (!search->includes(x.key)) continue;
        const uint64_t count = repeats ? batch_.repeats_of(x.row) : 1;
        Bin& bin = bins[search->bin_of(x.key)];
        bin.count += count;
        bin.significands += count * significand_of(x.key);
      }
      search->choose(bins);
    }
  }

  // Returns the place of the token with a rank among the candidates with a key.
  double place_among(const std::vector<KeptToken>& candidates, uint32_t key, double rank) const {
    std::vector<KeptToken> ties;
    std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(ties),
                 [&](const KeptToken& x) { return x.key == key; });
    const auto is_before = [](const KeptToken& a, const KeptToken& b) {
      return a.row != b.row ? a.row < b.row : a.position < b.position;
    };
    // They often are in order already, as one thread collects many of them.
    if (!std::is_sorted(ties.begin(), ties.end(), is_before)) std::sort(ties.begin(), ties.end(), is_before);
    for (const KeptToken& x : ties) {
      rank -= batch_.repeats_of(x.row);
      if (rank < 0) return static_cast<double>(x.row) * program::kPlacesPerRow + x.position;
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
    run_here(of_segment, wanted, {row, row + 1, 0, -1});
    return place_among(of_row.candidates_, key_of(limit), rank);
  }

  const BatchView& batch_;
  const int kept_, segment_;
  const double total_;  // the number of values
  std::vector<KeptToken> sample_;
  bool has_sample_ = false;

  std::mutex mutex_;  // protects what threads write: the candidates and the next flag
  bool out_of_memory_ = false;
  // The values between the limits, and how many other values there are.
  bool has_candidates_ = false;
  Limits limits_;
  std::vector<KeptToken> candidates_;
  std::vector<RowCounts> counts_;
  uint64_t less_ = 0, at_low_ = 0, between_ = 0, at_high_ = 0;
  bool has_sum_ = false;
  double sum_ = 0;  // of the values below the lower limit
  // The last search for a rank among the candidates. Programs ask for a value first, and then for its place.
  std::optional<Search> searched_;
  double searched_rank_ = 0;
};

}  // namespace policy_loss::cpu

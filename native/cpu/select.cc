#include "cpu/select.h"

#include <algorithm>

#include "cpu/engine.h"

namespace policy_loss::cpu {
namespace {

using program::Op;

// The most values that are gathered.
constexpr int kFew = 4096;

GatheredValues gathered_values(const TokenPass& pass, int gathered) {
  return {pass.program.gathered + gathered * pass.program.gathered_stride, pass.row_tokens, pass.batch};
}

// Returns the position of the unmasked token with an index in its row.
int64_t position_of(const TokenPass& pass, int64_t row, int64_t index) {
  const int64_t length = pass.batch->layout.length(row);
  const uint8_t* const mask = pass.batch->mask + pass.batch->layout.begin(row);
  for (int64_t at = 0; at < length; ++at)
    if (mask[at] != 0 && index-- == 0) return at;
  return length - 1;  // the caller has masked tokens since they were counted
}

}  // namespace

bool Selections::begin(const TokenPass& pass) {
  first_ = searched_.size();
  answers_.clear();
  counts_ties_ = false;
  const ProgramPass& p = pass.program;
  const program::ProgramView& program = *p.program;
  for (int i = program.segments[p.first_segment].first; i < program.segments[p.last_segment].first; ++i)
    if (program::is_rows_selection(program.instructions[i].op)) add(pass, program.instructions[i]);
  return needs_pass(pass);
}

// Adds a selection. A value and its place come from the same search.
void Selections::add(const TokenPass& pass, const program::Instruction& x) {
  const bool by_sum = x.op == Op::k_rows_under_mean || x.op == Op::k_rows_under_fill;
  const auto is_same = [&](const Searched& s) {
    return !by_sum && !s.by_sum && s.gathered == x.operand[0].index && s.by.kind == x.operand[1].kind &&
           s.by.index == x.operand[1].index;
  };
  size_t at = first_;
  while (at < searched_.size() && !is_same(searched_[at])) ++at;
  if (at == searched_.size()) searched_.push_back(start(pass, x, by_sum));
  const bool is_place = x.op == Op::k_rows_rank_at;
  searched_[at].wants_place |= is_place;
  answers_.push_back({x.out, is_place, at});
}

// Returns the search for a selection. It is done already if an earlier search has what it needs.
Selections::Searched Selections::start(const TokenPass& pass, const program::Instruction& x,
                                       bool by_sum) const {
  const ProgramPass& p = pass.program;
  double by = 0;  // the operand in the first row that takes part
  int64_t row = 0;
  while (row < pass.batch->layout.rows && !takes_part(pass, row)) ++row;
  if (row < pass.batch->layout.rows)
    by = p.row_values[row * row_stride(*p.program) + p.program->row_values + x.out];
  const Searched fresh{x.operand[0].index, x.operand[1], by_sum, Search(x.op, by)};
  for (size_t i = 0; i < first_ && !by_sum; ++i) {
    Searched again = fresh;
    again.search = again.narrowed = searched_[i].narrowed;
    again.keys = searched_[i].keys;
    if (searched_[i].gathered == again.gathered && again.look_for_rank(by)) return again;
  }
  return fresh;
}

bool Selections::next(const TokenPass& pass) {
  for (size_t i = first_; i < searched_.size(); ++i) {
    Searched& s = searched_[i];
    if (s.search.is_done()) continue;
    if (s.gathers) {
      s.finish();
      continue;
    }
    s.choose();
    s.narrowed = s.search;
    s.gathers = s.search.found() <= kFew;
  }
  return needs_pass(pass);
}

bool Selections::needs_pass(const TokenPass& pass) {
  bool wants_places = false;
  for (size_t i = first_; i < searched_.size(); ++i) {
    if (!searched_[i].search.is_done()) return true;
    if (!searched_[i].wants_place) continue;
    searched_[i].ties.resize(pass.batch->layout.rows);
    wants_places = true;
  }
  if (wants_places && !counts_ties_) return counts_ties_ = true;
  for (const Answer& answer : answers_) {
    const Searched& s = searched_[answer.searched];
    pass.program.batch_values[answer.out] = answer.is_place ? place_of(pass, s) : s.search.result();
  }
  return false;
}

// Finds the next digit from the bins.
void Selections::Searched::choose() {
  search.choose(bins.data());
  std::fill(bins.begin(), bins.end(), Bin{});
}

// Finds the remaining digits among the gathered keys.
void Selections::Searched::finish() {
  while (!search.is_done()) {
    const Digit digit = search.digit();
    for (const auto& [key, count] : keys) {
      if (!digit.includes(key)) continue;
      Bin& bin = bins[digit.bin_of(key)];
      bin.count += count;
      bin.significands += uint64_t{count} * significand_of(key);
    }
    choose();
  }
}

// Finds the value with a rank. Returns false if it does not begin with the digits of the narrowed search.
bool Selections::Searched::look_for_rank(double rank) {
  if (!search.look_for_rank(rank)) return false;
  finish();
  return true;
}

void Selections::run(const TokenPass& pass, const Chunk& chunk) {
  for (size_t i = first_; i < searched_.size(); ++i) {
    Searched& s = searched_[i];
    if (!s.search.is_done()) s.gathers ? gather(pass, chunk, &s) : count(pass, chunk, &s);
    for (int64_t row = chunk.first_row; row < chunk.last_row && counts_ties_ && s.wants_place; ++row)
      s.ties[row] = target()->count_key(s.search.key(), gathered_values(pass, s.gathered), row);
  }
}

void Selections::count(const TokenPass& pass, const Chunk& chunk, Searched* s) {
  Bin bins[kMaxBins] = {};
  target()->count_digits(s->search.digit(), gathered_values(pass, s->gathered), chunk, bins);
  std::lock_guard lock(mutex_);
  for (int b = 0; b < kMaxBins; ++b) {
    s->bins[b].count += bins[b].count;
    s->bins[b].significands += bins[b].significands;
  }
}

void Selections::gather(const TokenPass& pass, const Chunk& chunk, Searched* s) {
  const GatheredValues gathered = gathered_values(pass, s->gathered);
  uint32_t keys[kFew];
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const uint32_t repeats = pass.batch->repeats_of(row);
    if (repeats == 0) continue;
    const int n =
        target()->gather_keys(s->search.digit(), gathered.of_row(row), gathered.tokens[row], keys, kFew);
    std::lock_guard lock(mutex_);
    for (int i = 0; i < n; ++i) s->keys.push_back({keys[i], repeats});
  }
}

// Returns the place of the token that has the result of a search, or −1 if there are no tokens.
double Selections::place_of(const TokenPass& pass, const Searched& s) const {
  double left = s.search.rank_among_ties();
  for (int64_t row = 0; left >= 0 && row < pass.batch->layout.rows; ++row) {
    const double repeats = pass.batch->repeats_of(row);
    const double ties = repeats * static_cast<double>(s.ties[row]);
    if (left >= ties) {
      left -= ties;
      continue;
    }
    const float* const values = gathered_values(pass, s.gathered).of_row(row);
    for (int64_t i = 0; i < pass.row_tokens[row]; ++i) {
      if (key_of(values[i]) != s.search.key()) continue;
      left -= repeats;
      if (left < 0)
        return static_cast<double>(row) * program::kPlacesPerRow +
               static_cast<double>(position_of(pass, row, i));
    }
  }
  return -1;
}

}  // namespace policy_loss::cpu

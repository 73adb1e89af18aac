// Reductions over groups and pairs of rows, and comparisons of all rows (see program/program.h).
#pragma once

#include "math/elementary.h"
#include "program/program.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The groups of rows that a reduction combines. The rows of a group form a ring: after the last comes the
// first.
struct RowGroups {
  const double* next;  // the column kNextInGroup or kNextInPair; null if rows 2i and 2i + 1 are pairs
  int64_t rows;

  PL_FN int64_t next_of(int64_t row) const {
    if (next) return static_cast<int64_t>(next[row]);
    const int64_t other = row ^ 1;
    return other < rows ? other : row;
  }
  PL_FN bool is_last(int64_t row) const { return next_of(row) <= row; }

  // Calls visit(row) for the rows of a group in order. `last` is the last of them.
  template <class Visit>
  PL_FN void visit(int64_t last, Visit visit) const {
    for (int64_t row = next_of(last);; row = next_of(row)) {
      visit(row);
      if (row >= last) return;
      if (next_of(row) <= row) return;
    }
  }
};

// Computes a reduction over the rows of a group that take part, of which `last` is the last. `get` returns
// the operand of a row, and `set` receives the result for a row.
template <class TakesPart, class Get, class Set>
PL_FN void reduce_group(program::Op op, const RowGroups& groups, int64_t last, TakesPart takes_part, Get get,
                        Set set) {
  const bool is_position = op == program::Op::k_group_arg_max;
  const bool is_sum = !is_position && op != program::Op::k_group_max;
  int64_t found = -1;  // the last row that was added, or the first one with the largest number
  double result = 0;
  groups.visit(last, [&](int64_t row) {
    if (!takes_part(row)) return;
    const double x = get(row);
    if (found >= 0 && !is_sum && !(result == result && (x > result || x != x))) return;
    result = is_sum && found >= 0 ? result + x : x;
    found = row;
  });
  if (is_position) result = static_cast<double>(found);
  groups.visit(last, [&](int64_t row) {
    if (takes_part(row)) set(row, result);
  });
}

// Returns the place of a row in its pair: 0 for the first row, 1 for the second, and 2 for a row without
// another one. `next` is the column kNextInPair, or null.
PL_FN double place_in_pair(const double* next, int64_t row) {
  const int64_t other = next ? static_cast<int64_t>(next[row]) : row ^ 1;
  return static_cast<double>((other < row) + 2 * (other == row));
}

// Returns the number of rows that come before a row if rows are ordered by a number, and then by their index.
template <class TakesPart, class Get>
PL_FN double rank_of_row(int64_t row, int64_t rows, TakesPart takes_part, Get get) {
  const double own = get(row);
  int64_t before = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const double x = get(r);
    if ((x < own || (x == own && r < row)) && takes_part(r)) ++before;
  }
  return static_cast<double>(before);
}

// Returns a number of the first row that has the given rank, or 0 if there is none.
template <class TakesPart, class Get, class Rank>
PL_FN double at_rank(double wanted, int64_t rows, TakesPart takes_part, Get get, Rank rank) {
  for (int64_t r = 0; r < rows; ++r)
    if (rank(r) == wanted && takes_part(r)) return get(r);
  return 0.0;
}

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

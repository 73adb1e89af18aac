// Reductions over groups and pairs of rows (see program/program.h).
#pragma once

#include "math/elementary.h"
#include "program/program.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// The groups of rows that a reduction combines. The rows of a group form a ring: after the last comes the
// first.
struct RowGroups {
  const double* next;  // the column kNextInGroup; null if the groups are pairs
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

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

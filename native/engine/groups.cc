#include "engine/groups.h"

#include <algorithm>
#include <unordered_map>

namespace policy_loss {
namespace {

// Numbers the keys in the order in which they first appear. Equal keys get the same number. Returns how many
// different keys there are. Keys are usually close together; a table is then faster than a hash map.
template <class Key>
int64_t number_by_appearance(int64_t n, Key key, std::vector<int64_t>* numbers) {
  numbers->resize(n);
  if (n == 0) return 0;
  int64_t least = key(0), most = key(0);
  for (int64_t i = 1; i < n; ++i) {
    least = std::min(least, key(i));
    most = std::max(most, key(i));
  }
  int64_t found = 0;
  const auto range = static_cast<uint64_t>(most) - static_cast<uint64_t>(least);
  if (range < 8 * static_cast<uint64_t>(n) + 1024) {
    std::vector<int64_t> table(range + 1, -1);
    for (int64_t i = 0; i < n; ++i) {
      int64_t& number = table[key(i) - least];
      if (number < 0) number = found++;
      (*numbers)[i] = number;
    }
  } else {
    std::unordered_map<int64_t, int64_t> table;
    table.reserve(n);
    for (int64_t i = 0; i < n; ++i) {
      const auto [at, is_new] = table.try_emplace(key(i), found);
      found += is_new;
      (*numbers)[i] = at->second;
    }
  }
  return found;
}

}  // namespace

Groups find_groups(int64_t rows, const int32_t* groups, const int32_t* runs) {
  Groups result;
  std::vector<int64_t> group_of_row;
  const int64_t count = number_by_appearance(
      rows, [&](int64_t row) { return static_cast<int64_t>(groups[row]); }, &group_of_row);
  if (runs) {
    std::vector<int64_t> run_of_row;
    const int64_t run_count = number_by_appearance(
        rows, [&](int64_t row) { return static_cast<int64_t>(runs[row]); }, &run_of_row);
    const int64_t members = number_by_appearance(
        rows, [&](int64_t row) { return group_of_row[row] * run_count + run_of_row[row]; },
        &result.member_of_row);
    result.last_row.resize(members);
    result.member_rows.resize(members);
  } else {
    result.last_row.resize(rows);
    result.member_rows.resize(rows);
  }
  for (int64_t row = 0; row < rows; ++row) {
    result.last_row[result.member(row)] = row;
    ++result.member_rows[result.member(row)];
  }

  result.offsets.assign(count + 1, 0);
  for (const int64_t row : result.last_row) ++result.offsets[group_of_row[row] + 1];
  for (int64_t group = 0; group < count; ++group) result.offsets[group + 1] += result.offsets[group];
  result.members.resize(result.member_count());
  std::vector<int64_t> next(result.offsets.begin(), result.offsets.end() - 1);
  for (int64_t member = 0; member < result.member_count(); ++member)
    result.members[next[group_of_row[result.last_row[member]]]++] = member;
  return result;
}

}  // namespace policy_loss

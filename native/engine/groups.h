// The groups of a batch. A group consists of the rows that answer the same prompt. An advantage function
// compares the members of a group. A member is a single row, or a run of several rows that are scored
// together. The host finds the groups for all devices, because this is little work: it visits rows, but no
// tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace policy_loss {

struct Groups {
  std::vector<int64_t> member_of_row;  // empty if every row is a member
  std::vector<int64_t> last_row;       // of each member
  std::vector<int64_t> member_rows;    // the number of rows of each member
  // The members of group g are members[offsets[g]] to members[offsets[g + 1] - 1]. Groups and members are
  // ordered by their first rows.
  std::vector<int64_t> offsets{0};
  std::vector<int64_t> members;

  int64_t member_count() const { return static_cast<int64_t>(last_row.size()); }
  int64_t size() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t member(int64_t row) const { return member_of_row.empty() ? row : member_of_row[row]; }
};

// Finds the groups of a batch. Rows with equal numbers in `groups` form a group. If `runs` is null, every row
// is a member; otherwise the rows of a group with equal numbers in `runs` form a member. Takes time linear in
// the number of rows.
Groups find_groups(int64_t rows, const int32_t* groups, const int32_t* runs);

}  // namespace policy_loss

// Which rows of a batch belong together: the groups of rows that answer the same prompt, and within them the
// units that are compared, a row or a run of several rows each. Row-sized work, done once for all devices.
#pragma once

#include <cstdint>
#include <vector>

namespace policy_loss {

struct Groups {
  // Without runs every row is a unit by itself, and unit_of_row is empty.
  std::vector<int64_t> unit_of_row;
  std::vector<int64_t> last_row;   // of each unit
  std::vector<int64_t> unit_rows;  // how many rows each unit has
  // Units by group, in the order of the rows they begin with; groups likewise.
  std::vector<int64_t> offsets{0};  // groups + 1 of them
  std::vector<int64_t> members;

  int64_t units() const { return static_cast<int64_t>(last_row.size()); }
  int64_t size() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t unit(int64_t row) const { return unit_of_row.empty() ? row : unit_of_row[row]; }
};

// runs may be null. Linear in the number of rows.
Groups find_groups(int64_t rows, const int32_t* groups, const int32_t* runs);

}  // namespace policy_loss

#include "cpu/top_logits.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "cpu/logits.h"
#include "program/select.h"

namespace policy_loss::cpu {
namespace {

// The tokens with the largest logits among those that were added.
class Largest {
 public:
  Largest(int64_t count, float bound) : count_(count), bound_(bound) { keys_.reserve(kPlaces * count); }

  // A logit below this is not among the largest.
  float bound() const { return bound_; }

  void add(float logit, int64_t id) {
    keys_.push_back(key_of(logit, static_cast<uint32_t>(id)));
    if (static_cast<int64_t>(keys_.size()) < kPlaces * count_) return;
    drop();
    raise_bound(keys_.back());
  }

  // Writes the ids, the largest logit's first.
  void write(int32_t* ids) {
    if (static_cast<int64_t>(keys_.size()) > count_) drop();
    std::sort(keys_.begin(), keys_.end(), std::greater<uint64_t>());
    for (const uint64_t key : keys_) *ids++ = static_cast<int32_t>(place_of(key));
  }

 private:
  void raise_bound(uint64_t key) { bound_ = value_of(static_cast<uint32_t>(key >> 32)); }

  // So many times as many as are wanted are kept before the others are dropped.
  static constexpr int64_t kPlaces = 2;

  // Keeps the largest ones, of which the least comes last.
  void drop() {
    std::nth_element(keys_.begin(), keys_.begin() + count_ - 1, keys_.end(), std::greater<uint64_t>());
    keys_.resize(count_);
  }

  const int64_t count_;
  float bound_;
  std::vector<uint64_t> keys_;
};

// Returns a number that at least `count` logits reach, if there are as many, from the largest logit of each
// group: each of these is in another group.
float bound_of(std::vector<float> largest, int64_t count) {
  // Finding it among fewer, larger groups saves more time than a closer bound would.
  constexpr int64_t kGroups = 4;
  size_t size = largest.size();
  for (; size % 2 == 0 && static_cast<int64_t>(size) / 2 >= kGroups * count; size /= 2)
    for (size_t i = 0; i < size / 2; ++i) largest[i] = std::max(largest[i], largest[i + size / 2]);
  if (static_cast<int64_t>(size) < count) return -std::numeric_limits<float>::infinity();
  std::nth_element(largest.begin(), largest.begin() + count - 1, largest.begin() + size,
                   std::greater<float>());
  return largest[count - 1];
}

void find_largest(const LogitsRow& row, int64_t count, int32_t* ids) {
  std::vector<float> of_groups(logit_groups(row.length));
  target()->largest_of_groups(row, of_groups.data());
  Largest largest(count, bound_of(of_groups, count));
  for (size_t group = 0; group < of_groups.size(); ++group) {
    if (!(of_groups[group] >= largest.bound())) continue;
    const int64_t first = group / kSumLanes * kLogitsOfGroups + group % kSumLanes;
    const int64_t last = std::min(first + kLogitsOfGroups, row.length);
    for (int64_t id = first; id < last; id += kSumLanes) {
      const float logit = logit_at(row.data, row.dtype, id);
      if (logit >= largest.bound()) largest.add(logit, id);
    }
  }
  largest.write(ids);
}

}  // namespace

void write_top_ids(const LogitsCall& call, int64_t row) {
  int32_t* const ids = call.top_ids + row * call.top_length;
  std::fill_n(ids, call.top_length, -1);
  if (call.top_length == 0 || call.targets[row] == kIgnoredTarget) return;
  const char* const logits =
      static_cast<const char*>(call.data) + row * call.row_stride * size_of(call.dtype);
  find_largest({logits, call.dtype, call.vocabulary, nullptr, call.vocabulary, 0, 0, 1}, call.top_length,
               ids);
}

}  // namespace policy_loss::cpu

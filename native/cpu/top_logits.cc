#include "cpu/top_logits.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "program/select.h"

namespace policy_loss::cpu {
namespace {

// How many logits are compared with the bound at once.
constexpr int kCompared = 16;

// The tokens with the largest logits among those that were added.
class Largest {
 public:
  explicit Largest(int64_t count) : count_(count) { keys_.reserve(kPlaces * count + kCompared); }

  // Raises the bound to the least logit of some tokens, if they are as many as are wanted.
  void expect(const void* logits, const LogitsCall& call, int64_t row) {
    for (int64_t i = call.list_begin(row); i < call.list_begin(row + 1); ++i) {
      if (!call.is_listed(i)) continue;
      const int32_t id = call.list_ids[i];
      const float logit = logit_at(logits, call.dtype, id);
      if (logit == logit) keys_.push_back(key_of(logit, static_cast<uint32_t>(id)));
    }
    std::sort(keys_.begin(), keys_.end(), std::greater<uint64_t>());
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
    if (static_cast<int64_t>(keys_.size()) >= count_) raise_bound(keys_[count_ - 1]);
    keys_.clear();
  }

  // A logit below this is not among the largest.
  float bound() const { return bound_; }

  void add(float logit, int64_t id) {
    keys_.push_back(key_of(logit, static_cast<uint32_t>(id)));
    if (static_cast<int64_t>(keys_.size()) < kPlaces * count_ + kCompared) return;
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
  float bound_ = -std::numeric_limits<float>::infinity();
  std::vector<uint64_t> keys_;
};

// Returns whether one of kCompared logits is not below the bound. The number is constant, so that the
// compiler compares several at once.
bool reaches(const float* x, float bound) {
  int count = 0;
  for (int i = 0; i < kCompared; ++i) count += x[i] >= bound ? 1 : 0;
  return count > 0;
}

void find_largest(const void* logits, const LogitsCall& call, int64_t row, int64_t count, int32_t* ids) {
  Largest largest(count);
  if (call.list_ids) largest.expect(logits, call, row);
  float wide[kCompared];
  for (int64_t at = 0; at < call.vocabulary; at += kCompared) {
    const int n = static_cast<int>(std::min<int64_t>(kCompared, call.vocabulary - at));
    const float* x = static_cast<const float*>(logits) + at;
    if (call.dtype != DType::kFloat32) {
      for (int i = 0; i < n; ++i) wide[i] = logit_at(logits, call.dtype, at + i);
      x = wide;
    }
    if (n == kCompared && !reaches(x, largest.bound())) continue;
    for (int i = 0; i < n; ++i)
      if (x[i] >= largest.bound()) largest.add(x[i], at + i);
  }
  largest.write(ids);
}

}  // namespace

int64_t TopLogits::open_phase() {
  if (has_begun_ || count_ == 0 || check_abort()) return 0;
  has_begun_ = true;
  return call_.rows;
}

void TopLogits::work(int64_t row) {
  if (check_abort()) return;
  int32_t* const ids = ids_ + row * count_;
  std::fill_n(ids, count_, -1);
  if (call_.targets[row] == kIgnoredTarget) return;
  const char* const logits =
      static_cast<const char*>(call_.data) + row * call_.row_stride * size_of(call_.dtype);
  find_largest(logits, call_, row, count_, ids);
}

}  // namespace policy_loss::cpu

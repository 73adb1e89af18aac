// Memory for the numbers that the tokens of rows keep or scan (see ProgramPass), while a pass computes a
// chunk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "cpu/target.h"

namespace policy_loss::cpu {

// Memory for numbers that are written before they are read. Unlike a vector, it is not cleared, which takes
// as long as writing the numbers.
template <class Number>
class Numbers {
 public:
  // Returns memory for n numbers, which the caller must write first. Throws std::bad_alloc if memory runs
  // out.
  Number* resize(int64_t n) {
    if (n > size_) {
      size_ = 0;
      data_.reset();
      data_.reset(new Number[n]);
      size_ = n;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<Number[]> data_;
  int64_t size_ = 0;
};

// Memory for what the rows of a chunk use one after another, which therefore stays in the cache.
class RowMemory {
 public:
  // Allocates the memory that a pass needs for a chunk, and sets the pointers of the pass to it. Throws
  // std::bad_alloc if memory runs out.
  void give(TokenPass* pass, const Chunk& chunk) {
    ProgramPass& p = pass->program;
    if (!p.program) return;
    const int64_t gathered = p.program->has_batch_segment ? 0 : p.program->gathered;
    const int64_t scanned = p.program->has_several_passes ? 0 : p.program->scanned;
    if (gathered + scanned == 0 && !p.program->has_ranks) return;
    int64_t longest = 0;
    for (int64_t row = chunk.first_row; row < chunk.last_row; ++row)
      longest = std::max(longest, pass->batch->layout.length(row));
    if (p.program->has_ranks) {
      keys_.reset(new uint64_t[longest]);
      p.keys = keys_.get();
    }
    const int64_t stride = longest + kScannedPadding;
    data_.reset(new float[(gathered + scanned) * stride]);
    if (gathered > 0) {
      p.gathered = data_.get();
      p.gathered_stride = stride;
    }
    if (scanned > 0) {
      p.scanned = data_.get() + gathered * stride;
      p.scanned_stride = stride;
    }
  }

 private:
  std::unique_ptr<float[]> data_;
  std::unique_ptr<uint64_t[]> keys_;
};

}  // namespace policy_loss::cpu

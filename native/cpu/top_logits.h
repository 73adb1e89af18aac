// Finds the tokens with the largest logits of each row on the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/logits.h"

namespace policy_loss::cpu {

// Computes a call, as a task of the thread pool. Of the call, only the logits and the targets are read.
class TopLogits : public Task {
 public:
  // `ids` has `count` places per row. It receives the tokens with the largest logits, in the order of their
  // logits and, of equal ones, of their ids; −1 after the last token, and in ignored rows.
  TopLogits(const LogitsCall& call, int64_t count, int32_t* ids) : call_(call), count_(count), ids_(ids) {}

  bool is_small() const { return call_.rows * call_.vocabulary <= kFewLogits; }
  void done() override {}

 private:
  static constexpr int64_t kFewLogits = 8192;

  int64_t open_phase() override;
  void work(int64_t item) override;

  LogitsCall call_;
  int64_t count_;
  int32_t* ids_;
  bool has_begun_ = false;
};

}  // namespace policy_loss::cpu

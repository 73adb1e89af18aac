// Reads memory ahead of the interpreter of programs.
#pragma once

#include "cpu/tile.h"
#include "program/program.h"

namespace policy_loss::inline POLICY_LOSS_TARGET {

// Prefetches the columns of the tokens that follow a tile, and the tile's own gradients, a few cache lines
// with each instruction. Memory is thus read while the processor computes. Otherwise, the instructions that
// read columns or write gradients would wait for it.
class ReadAhead {
 public:
  ReadAhead(const program::ProgramView& program, const TileColumns& in, int n, int instructions, float* grad)
      : grad_(reinterpret_cast<char*>(grad)),
        lines_(n * static_cast<int>(sizeof(float)) / kLine),
        per_advance_((lines_ + instructions - 1) / instructions) {
    for (int c = 0; c < kColumns; ++c)
      if ((program.columns & reads(c)) != 0)
        begin_[count_++] = reinterpret_cast<const char*>(in.get<const float*>(c) + n);
  }

  void advance() {
    for (const int end = at_ + per_advance_; at_ < end && at_ < lines_; ++at_) {
      for (int c = 0; c < count_; ++c) __builtin_prefetch(begin_[c] + at_ * kLine);
      if (grad_) __builtin_prefetch(grad_ + at_ * kLine, 1);
    }
  }

 private:
  static constexpr int kLine = 64;  // the bytes of a cache line
  const char* begin_[kColumns];
  int count_ = 0;
  char* const grad_;  // null if no gradient is wanted
  const int lines_, per_advance_;
  int at_ = 0;
};

}  // namespace policy_loss::inline POLICY_LOSS_TARGET

// Reads and writes the same memory as an evaluation, but computes nothing. This measures how much of an
// evaluation's time is spent on memory access. Only the bench build has this file.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/engine.h"

namespace policy_loss::cpu {

// A task that reads the columns and writes the gradients of an Evaluation, but computes nothing. It uses the
// same threads and chunks as the Evaluation.
class Traffic : public Task {
 public:
  Traffic(std::shared_ptr<const PreparedFunction> function, const BatchView& batch, const Outputs& outputs);
  // Returns bits that depend on all data that was read. Without them, the compiler could omit the reads.
  uint32_t seen() const { return seen_.load(std::memory_order_relaxed); }

  void done() override {}
  bool is_small() const { return chunks_.size() <= 1; }

 private:
  int64_t open_phase() override { return phase_++ == 0 ? static_cast<int64_t>(chunks_.size()) : 0; }
  void work(int64_t item) override;
  uint32_t run_tile(int64_t first, int64_t n) const;

  std::shared_ptr<const PreparedFunction> function_;
  BatchView batch_;
  unsigned columns_;
  GradientView gradients_[2];
  int phase_ = 0;
  std::vector<Chunk> chunks_;
  std::atomic<uint32_t> seen_{0};
};

// A task that reads memory once and, if wanted, writes the same bytes back. It divides the memory among the
// pool's threads.
class MemoryTraffic : public Task {
 public:
  MemoryTraffic(char* data, int64_t bytes, bool writes);
  uint32_t seen() const { return seen_.load(std::memory_order_relaxed); }

  void done() override {}
  bool is_small() const { return false; }

 private:
  int64_t open_phase() override;
  void work(int64_t item) override;

  char* data_;
  int64_t bytes_;
  bool writes_;
  bool has_begun_ = false;
  std::atomic<uint32_t> seen_{0};
};

}  // namespace policy_loss::cpu

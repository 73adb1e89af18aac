// Computes log-probabilities, entropies and gradients from logits on the CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cpu/pool.h"
#include "cpu/target.h"
#include "logits/call.h"

namespace policy_loss::cpu {

using policy_loss::kIgnoredTarget;
using policy_loss::LogitsCall;

// Computes a call, as a task of the thread pool. Threads take whole rows or, if rows are few and long,
// segments of a row. Sums over a row are added up tile by tile within a segment, and then segment by segment.
// So their bits depend neither on the other rows nor on the threads.
class LogitsEvaluation : public Task {
 public:
  explicit LogitsEvaluation(const LogitsCall& call);

  // Sets the flag that stops the evaluation: it stops soon after *flag becomes non-zero.
  void set_abort_flag(const int32_t* flag) { abort_ = flag; }
  void abort() { aborted_.store(true, std::memory_order_relaxed); }
  bool aborted() const { return aborted_.load(std::memory_order_relaxed); }
  // If memory runs out, the evaluation is aborted.
  bool out_of_memory() const { return out_of_memory_.load(std::memory_order_relaxed); }
  bool is_small() const;

  int64_t next_phase() override;
  void run(int64_t piece) override;
  void done() override {}

 private:
  enum class Phase { kBegin, kSums, kGradient };

  // The sums over a segment of a row.
  struct Segment {
    SoftmaxSums sums;
    double target = 0;
  };

  bool check_abort();
  bool has_target(int64_t row) const { return call_.targets[row] != kIgnoredTarget; }
  bool splits_rows() const { return !segments_.empty(); }
  double temperature(int64_t row) const {
    return call_.temperatures ? call_.temperatures[row] : call_.temperature;
  }
  LogitsRow row_of(int64_t row) const;
  void sum(const LogitsRow& view, int64_t segment, Segment* into) const;
  void finish(int64_t row, const Segment& total);
  void sum_row(int64_t row);
  void write_gradient(int64_t row, int64_t first, int64_t last);
  void write_gradient_of_support(int64_t row, const LogitsRow& view, const SoftmaxGradient& gradient);

  LogitsCall call_;
  const int32_t* abort_ = nullptr;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> out_of_memory_{false};

  Phase phase_ = Phase::kBegin;
  bool sums_;               // whether logsumexp and entropy must be computed
  int64_t rows_per_piece_;  // if rows are not split
  int64_t segments_per_row_;
  std::vector<Segment> segments_;  // of all rows, if rows are split
  std::vector<double> logsumexp_;  // those of a call that computes the gradient and was not given them
  std::vector<float> entropy_;
};

}  // namespace policy_loss::cpu

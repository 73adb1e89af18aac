// The three passes on cores: rows, weights, tokens, for one Function over one batch in the machine's memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cpu/pool.h"
#include "cpu/target.h"
#include "engine/function.h"

namespace policy_loss::cpu {

// The instruction set in use, or null where POLICY_LOSS_ISA names one that cannot run here.
const Target* target();

// The chunks of a layout, in its order; rows are cut into parts where they are long, unless whole_rows.
std::vector<Chunk> plan_chunks(const Layout& layout, bool whole_rows = false);
void plan_chunks(const Layout& layout, bool whole_rows, std::vector<Chunk>* chunks);

// A batch that is one chunk is best computed by the calling thread alone: all phases, one after another.
template <class Task>
void run_here(Task& task) {
  while (const int64_t pieces = task.next_phase())
    for (int64_t piece = 0; piece < pieces; ++piece) task.run(piece);
  task.done();
}

// What an evaluation keeps while it runs, in memory that the next one may use again.
struct Workspace {
  std::vector<Chunk> chunks;
  std::vector<RowPart> parts;  // the row pass of each chunk that is a part of a row
  std::vector<Sums> sums;      // the token pass of each chunk
  std::vector<int64_t> row_tokens;
  std::vector<double> row_sums;
  std::vector<double> row_negatives;
};

// Whether a batch is too small to be worth handing to other threads.
bool is_small(const Layout& layout);

// One evaluation, as a task of the pool: a phase over the rows, the weights, a phase over the tokens.
class Evaluation : public Task {
 public:
  Evaluation(std::shared_ptr<const PreparedFunction> function, const BatchView& batch,
             const Coefficients& coefficients, const Normalizer& normalizer, const Outputs& outputs,
             Workspace workspace = {});
  // Its memory, when it is done.
  Workspace take_workspace() { return std::move(work_); }

  // Where *flag becomes non-zero, what is left is skipped.
  void set_abort_flag(const int32_t* flag) { abort_ = flag; }
  void abort() { aborted_.store(true, std::memory_order_relaxed); }
  bool aborted() const { return aborted_.load(std::memory_order_relaxed); }
  const Outputs& outputs() const { return outputs_; }

  int64_t next_phase() override;
  void run(int64_t piece) override;
  void done() override {}

  // Whether the batch is too small to be worth handing to other threads.
  bool is_small() const { return cpu::is_small(batch_.layout); }

 private:
  bool check_abort();
  void rows(int64_t piece);
  void weights();
  void fold();

  std::shared_ptr<const PreparedFunction> function_;
  BatchView batch_;
  Coefficients coefficients_;
  Normalizer normalizer_;
  Outputs outputs_;
  const int32_t* abort_ = nullptr;
  std::atomic<bool> aborted_{false};

  int phase_ = 0;
  Workspace work_;
  double pair_loss_ = 0;
  double pair_metric_[3] = {};
  TokenPass pass_{};
};

// The traffic of an Evaluation alone, by the same threads in the same chunks and tiles: the least time that
// memory leaves it.
class Traffic : public Task {
 public:
  Traffic(std::shared_ptr<const PreparedFunction> function, const BatchView& batch, const Outputs& outputs);
  void abort() {}
  uint32_t seen() const { return seen_.load(std::memory_order_relaxed); }

  int64_t next_phase() override { return phase_++ == 0 ? static_cast<int64_t>(chunks_.size()) : 0; }
  void run(int64_t piece) override;
  void done() override {}
  bool is_small() const { return chunks_.size() <= 1; }

 private:
  std::shared_ptr<const PreparedFunction> function_;
  BatchView batch_;
  int phase_ = 0;
  std::vector<Chunk> chunks_;
  TokenPass pass_{};
  std::atomic<uint32_t> seen_{0};
};

// KL values per token, or scores with a KL penalty, as a task of the pool.
class KlEvaluation : public Task {
 public:
  KlEvaluation(int estimator, const BatchView& batch, const float* base, double scale, float* out);
  // The mean over rows of the mean of m·kl in each; what a base was given for.
  double mean_kl() const { return mean_kl_; }

  void abort() { aborted_.store(true, std::memory_order_relaxed); }
  bool is_small() const { return chunks_.size() <= 1; }
  int64_t next_phase() override;
  void run(int64_t piece) override;
  void done() override;

 private:
  std::atomic<bool> aborted_{false};
  KlPass pass_;
  BatchView batch_;
  int phase_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<RowPart> parts_;
  std::vector<double> row_means_;
  double mean_kl_ = 0;
};

}  // namespace policy_loss::cpu

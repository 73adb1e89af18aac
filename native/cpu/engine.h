// Evaluates functions on the CPU in three passes. First, a row pass counts the unmasked tokens. Then the
// weights of the rows are computed. Finally, a token pass computes losses, metrics and gradients. A
// user-defined loss that reduces over all rows has further passes before the token pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cpu/pool.h"
#include "cpu/row_memory.h"
#include "cpu/select.h"
#include "cpu/target.h"
#include "engine/function.h"

namespace policy_loss::cpu {

// Returns the table of passes for the instruction set in use (see choose_target()). Returns null if
// POLICY_LOSS_ISA names an instruction set that cannot run here.
const Target* target();

// Divides a layout into chunks and returns them in order. Long rows are cut into several chunks unless
// whole_rows is set.
std::vector<Chunk> plan_chunks(const Layout& layout, bool whole_rows = false);

// Runs all phases of a task on the calling thread. This is fastest for a batch that is a single chunk.
template <class Task>
void run_here(Task& task) {
  while (const int64_t items = task.next_phase())
    for (int64_t item = 0; item < items; ++item) task.run(item);
  task.done();
}

// The memory that an evaluation works with.
struct Workspace {
  std::vector<Chunk> chunks;
  std::vector<RowTotals> partials;            // the row-pass result of each chunk within a row
  std::vector<ExactSums> sums;                // the token-pass sums of each chunk; at least one
  std::vector<int64_t> row_tokens, row_ends;  // see TokenPass
  std::vector<double> row_sums;
  std::vector<double> row_negatives;
  Numbers<double> row_values;                       // of a program; see ProgramPass
  std::vector<double> batch_values, batch_metrics;  // of a program too
  Numbers<float> gathered, scanned;
};

// Returns whether a batch is so small that the calling thread computes it faster alone than with the pool's
// threads.
bool is_small(const Layout& layout);

// Evaluates a function on a batch, as a task of the thread pool. The first phase plans the others. It is one
// item, which takes time and memory that grow with the rows, so the JavaScript thread does not do this. The
// second phase computes rows, the last computes tokens. Between the two, the weights of the rows are
// computed, and a user-defined loss may have a phase for each of its program's batch segments.
class Evaluation : public Task {
 public:
  Evaluation(std::shared_ptr<const PreparedFunction> function, const BatchView& batch,
             const Coefficients& coefficients, const Normalizer& normalizer, const Outputs& outputs);

  const Outputs& outputs() const { return outputs_; }
  void done() override {}

  bool is_small() const { return cpu::is_small(batch_.layout); }

  // Returns whether next_phase() has begun the phase of tokens, or a later one.
  bool has_begun_tokens() const { return phase_ >= Phase::kTokens; }

  // Writes the gradients of the tokens [first, last), which may belong to several rows, to the outputs. Can
  // be called by several threads at once, as soon as next_phase() has begun the phase of tokens, for a
  // function whose gradient is per token. Throws std::bad_alloc if memory runs out.
  void write_gradients(int64_t first, int64_t last);

 private:
  int64_t open_phase() override;
  void work(int64_t item) override;
  int64_t end();
  void plan();
  void plan_program();
  void rows(int64_t item);
  int64_t chunks_per_item() const;
  int64_t program_items() const;
  Chunk program_chunk(int64_t item) const;
  void program_pass(const Chunk& chunk);
  template <class Compute>
  void with_row_memory(const Chunk& chunk, const Compute& compute);
  void tokens(const Chunk& chunk, ExactSums* sums);
  void weights();
  bool next_program_pass();
  bool wants_batch_metrics() const;
  const double* batch_metrics();
  void fold();

  std::shared_ptr<const PreparedFunction> function_;
  BatchView batch_;
  Coefficients coefficients_;
  Normalizer normalizer_;
  Outputs outputs_;

  enum class Phase { kBegin, kPlan, kRows, kProgram, kSelect, kTokens, kSelectMetrics, kEnd };
  Phase phase_ = Phase::kBegin;
  Selections selections_;
  Workspace work_;
  program::ProgramView program_;
  TokenPass pass_{};
};

// Computes KL values per token, or rewards minus a KL penalty, as a task of the thread pool.
class KlEvaluation : public Task {
 public:
  KlEvaluation(int estimator, const BatchView& batch, const float* base, double scale, float* out);
  // Returns the average over rows of each row's mean KL, which is taken over the row's unmasked tokens.
  // Returns 0 if there is no base.
  double mean_kl() const { return mean_kl_; }

  bool is_small() const { return cpu::is_small(batch_.layout); }
  void done() override;

 private:
  int64_t open_phase() override;
  void work(int64_t item) override;
  void plan();

  KlPass pass_;
  BatchView batch_;
  int phase_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<RowTotals> partials_;
  std::vector<double> row_means_;
  double mean_kl_ = 0;
};

}  // namespace policy_loss::cpu

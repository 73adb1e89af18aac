// Computes log-probabilities, entropies and gradients from logits on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "cpu/engine.h"
#include "cpu/pool.h"
#include "cpu/target.h"
#include "logits/call.h"

namespace policy_loss::cpu {

using policy_loss::kIgnoredTarget;
using policy_loss::LogitsCall;

// Returns a number of an array of logits.
float logit_at(const void* data, DType dtype, int64_t index);

// The gradients of a loss with respect to the log-probability and the entropy of each row. Both are null if
// the gradients are in the LogitsCall instead.
struct RowGradients {
  const float* logprob = nullptr;
  const float* entropy = nullptr;  // may be null
};

// Computes a call, as a task of the thread pool. Threads take whole rows or, if rows are few and long,
// chunks of a row. Sums over a row are added up tile by tile within a chunk, and then chunk by chunk.
// So their bits depend neither on the other rows nor on the threads.
class LogitsEvaluation : public Task {
 public:
  // If there are `gradients`, the call's own are not read, and the rows of the call are not split.
  explicit LogitsEvaluation(const LogitsCall& call, const RowGradients& gradients = {});

  bool is_small() const;
  void done() override {}

  // Computes the results of a row.
  void sum_row(int64_t row, const LogitsTerms& saved = {});
  // Writes the gradient of a row whose results were computed. Throws std::bad_alloc if memory runs out.
  void write_gradient(int64_t row, const LogitsTerms& saved) {
    write_gradient(row, 0, call_.vocabulary, saved);
  }
  // Returns the logits of a row. Returns null for an ignored row, and for an index beyond the last row.
  const void* logits_of(int64_t row) const;
  // Returns where the gradient of a row is written.
  void* gradient_of(int64_t row) const;

 private:
  enum class Phase { kBegin, kSums, kGradient };

  // The sums over a chunk of a row.
  struct ChunkSums {
    SoftmaxSums sums;
    double target = 0;
  };

  int64_t open_phase() override;
  void work(int64_t item) override;
  bool has_target(int64_t row) const { return call_.targets[row] != kIgnoredTarget; }
  bool has_grad_entropy() const { return gradients_.entropy || call_.grad_entropy; }
  double grad_logprob(int64_t row) const {
    return gradients_.logprob ? gradients_.logprob[row] : call_.grad_of(row);
  }
  double grad_entropy(int64_t row) const {
    if (gradients_.entropy) return gradients_.entropy[row];
    return call_.grad_entropy ? call_.grad_entropy[row] : 0;
  }
  bool splits_rows() const { return !chunks_.empty(); }
  double temperature(int64_t row) const {
    return call_.temperatures ? call_.temperatures[row] : call_.temperature;
  }
  LogitsRow row_of(int64_t row) const;
  void sum(const LogitsRow& view, int64_t chunk, const LogitsTerms& saved, ChunkSums* into) const;
  void finish(int64_t row, const ChunkSums& total);
  void write_list(int64_t row, double logsumexp);
  void write_gradient(int64_t row, int64_t first, int64_t last, const LogitsTerms& saved = {});
  // Writes the gradients of the listed tokens among [first, last).
  void write_gradient_of_list(int64_t row, int64_t first, int64_t last, const SoftmaxGradient& gradient);
  void write_gradient_of_support(int64_t row, const LogitsRow& view, const SoftmaxGradient& gradient,
                                 const LogitsTerms& saved);

  LogitsCall call_;
  RowGradients gradients_;

  Phase phase_ = Phase::kBegin;
  bool sums_;              // whether logsumexp and entropy must be computed
  int64_t rows_per_item_;  // if rows are not split
  int64_t chunks_per_row_;
  std::vector<ChunkSums> chunks_;  // of all rows, if rows are split
  Numbers<double> logsumexp_;      // those of a call that computes the gradient and was not given them
  Numbers<float> entropy_;
};

// Computes, for consecutive tokens of a batch, the log-probabilities from logits, the gradients of a function
// with respect to them, and the gradient with respect to the logits. Row r of the logits is the token
// first_token + r. The function must have gradients per token (see gradient_is_per_token()). Each thread does
// all of this for a few rows at a time, while their logits are in the cache. It keeps the terms of the rows'
// sums, so that each exponential is computed once.
class LogitsGradient : public Task {
 public:
  // `outputs` receives the function's gradients. The batch's column of log-probabilities, and that of
  // entropies if the function reads it, is memory to which `call` writes.
  LogitsGradient(std::shared_ptr<const PreparedFunction> function, const BatchView& batch,
                 const Coefficients& coefficients, const Normalizer& normalizer, const Outputs& outputs,
                 const LogitsCall& call, int64_t first_token);

  bool is_small() const { return loss_.is_small() && logits_.is_small(); }
  void done() override {}

 private:
  // Memory for the rows of an item: of each row, the terms, unless they are saved in the gradient, what
  // belongs to its tiles, and the target's logit. It begins with a cache line, because vectors that cross
  // cache lines take longer to write.
  static constexpr std::align_val_t kLine{64};
  struct Free {
    void operator()(char* memory) const { operator delete(memory, kLine); }
  };
  using Terms = std::unique_ptr<char[], Free>;

  int64_t open_phase() override;
  void work(int64_t item) override;
  // Returns the memory for a row of an item that begins with the row `first`.
  LogitsTerms terms_of(const Terms& terms, int64_t first, int64_t row) const;

  Evaluation loss_;
  LogitsEvaluation logits_;
  int64_t rows_, first_token_;
  // Whether the terms are saved where the gradient is written, which may be in place of the logits. The cache
  // then holds more of a row.
  bool saves_terms_in_gradient_;
  int64_t terms_per_row_, tiles_per_row_, bytes_per_row_, rows_per_item_;
  // The distance of a row from the one at the same place in the thread's next item, if all threads
  // alternate.
  int64_t rows_to_next_;
  std::mutex mutex_;
  std::vector<Terms> unused_;  // at most kMostUnused
  bool has_begun_gradients_ = false;
};

}  // namespace policy_loss::cpu

// Evaluates several functions together.
#pragma once

#include <memory>
#include <vector>

#include "cpu/engine.h"

namespace policy_loss::cpu {

// Runs several evaluations as one task of the thread pool. A piece of the task consists of a piece of each
// evaluation. If the evaluations read the same batch, these pieces are the same tokens, which are still in
// the processor's cache when the second evaluation reads them.
class EvaluationGroup : public Task {
 public:
  Evaluation& add(std::unique_ptr<Evaluation> evaluation);
  const Evaluation& operator[](size_t i) const { return *members_[i].evaluation; }
  size_t size() const { return members_.size(); }
  void abort() override;
  void done() override;

 private:
  int64_t open_phase() override;
  void work(int64_t piece) override;

  struct Member {
    std::unique_ptr<Evaluation> evaluation;
    int64_t pieces = 0;  // in the current phase; 0 before the first phase and after the last one
  };
  std::vector<Member> members_;
  bool begun_ = false;
};

}  // namespace policy_loss::cpu

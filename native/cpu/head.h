// Computes the output head on the CPU: logits from hidden states, and the gradients back.
#pragma once

#include <vector>

#include "cpu/engine.h"
#include "cpu/pool.h"
#include "logits/head.h"

namespace policy_loss::cpu {

// Computes a call, as a task of the thread pool. Each thread takes parts of the products. The bits of a
// result do not depend on the parts.
class HeadEvaluation : public Task {
 public:
  explicit HeadEvaluation(const HeadCall& call) : call_(call) {}

  bool is_small() const { return false; }
  void done() override {}

 private:
  // How a product is divided.
  struct Parts {
    int64_t columns;  // of a part
    int64_t per_column;
    int64_t count;
  };

  int64_t open_phase() override;
  void work(int64_t item) override;
  static Parts divide(const Product& product);
  static void compute(const Product& product, const Parts& parts, int64_t part);
  void clear_ignored_rows(int64_t first, int64_t last) const;

  HeadCall call_;
  bool has_begun_ = false;
  std::vector<int64_t> rows_;   // those that take part, as in HeadRows
  int64_t clearing_items_ = 0;  // the first items write zeros to grad_hidden
  HeadProducts products_;
  Parts parts_[3] = {};
};

}  // namespace policy_loss::cpu

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
  // A product with the size of its parts.
  struct Divided {
    Product product;
    int64_t columns;  // of a part
    int64_t parts_per_row;
    int64_t parts;
  };

  int64_t open_phase() override;
  void work(int64_t item) override;
  void find_rows();
  void prepare_logits();
  void prepare_gradients();
  void add_product(const Product& product);
  void clear_ignored_rows(int64_t first, int64_t last) const;

  HeadCall call_;
  bool has_begun_ = false;
  int64_t first_ = 0;           // the first row that takes part
  std::vector<int64_t> rows_;   // the rows that take part, counted from the first of them
  std::vector<Divided> products_;
  int64_t clearing_items_ = 0;  // items that write zeros to grad_hidden
};

}  // namespace policy_loss::cpu

// Computes an advantage function on the CPU, as a task of the thread pool.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/engine.h"
#include "cpu/pool.h"
#include "cpu/target.h"
#include "engine/advantages.h"
#include "engine/groups.h"

namespace policy_loss::cpu {

// Adds the spreads of `rows` rows to *total, in order.
void add_spreads(const Spread* spreads, int64_t rows, Spread* total);

class AdvantageEvaluation : public Task {
 public:
  AdvantageEvaluation(AdvantageFunction function, const AdvantageBatch& batch,
                      const AdvantageOutputs& outputs, uint64_t seed, double* not_finite_row);

  // Returns the first input value that is not finite. If there is one, the outputs are meaningless, and
  // *not_finite_row holds the index of its row.
  const NonFiniteValue& not_finite() const { return not_finite_; }

  bool is_small() const { return cpu::is_small(batch_.tokens.layout); }
  void done() override {}

 private:
  int64_t open_phase() override;
  void work(int64_t item) override;
  // The first phase, which is one item, plans the others.
  void plan();
  void find_needs();
  bool collect_not_finite();  // returns whether a value that is not finite was found
  int64_t chunks() const { return static_cast<int64_t>(chunks_.size()); }

  // The phases of a group function: the first finds the groups, the second scores each group, and the third
  // writes the advantages of the tokens.
  int64_t next_group_phase();
  void find_members();
  void score_groups(int64_t item);
  template <class F>
  void score_group(const F& f, int64_t group, std::vector<double>* values);
  template <class F>
  void penalise(const F& f, const int64_t* members, std::vector<double>* rewards) const;
  std::vector<bool> surplus_of(int64_t group, const std::vector<double>& rewards) const;
  void count_repeats();

  template <class F>
  void score_named_rewards(const F& f, int64_t group);
  void whiten_scores();

  // The phases of a recurrence: unless the batch says how the advantages spread, the first phase measures it
  // if they will be whitened. The last phase writes the advantages.
  int64_t next_recurrence_phase();

  void finish_distillation();

  // The phases of a function with a baseline per token: the first finds the groups, and the second computes
  // each group.
  int64_t next_baseline_phase();
  void subtract_baselines(int64_t group);

  AdvantageFunction function_;
  AdvantageBatch batch_;
  AdvantageOutputs outputs_;
  uint64_t seed_;
  double* not_finite_row_;
  NonFiniteValue not_finite_;

  bool is_planned_ = false;
  int phase_ = 0;  // 0 until the plan is made
  AdvantagePass pass_{};
  bool whitened_ = false;
  bool measured_ = false;  // whether the first phase of a recurrence measures
  double whitening_tokens_ = 0;
  bool needs_statistics_ = false, counts_tokens_ = false;  // of each row
  std::vector<Chunk> chunks_;
  std::vector<NonFiniteValue> bad_;     // per chunk, or per group if the function has a baseline per token
  std::vector<Spread> spreads_;         // per row; recurrences that are measured only
  std::vector<double> partials_;        // two per chunk; distillation only
  std::vector<double> row_sums_;        // two per row; distillation only
  std::vector<double> row_statistics_;  // per row
  std::vector<double> row_tokens_;      // per row, its unmasked tokens

  Groups groups_;
  std::vector<double> member_rewards_;
  double batch_std_ = 1;
  double batch_rewarded_ = 1;
  std::vector<GroupRule> rules_;
  std::vector<double> group_rows_;
  std::vector<double> unwhitened_;  // per row, its score before whitening
  std::vector<float> scores_;
  std::vector<uint32_t> repeats_;
};

}  // namespace policy_loss::cpu

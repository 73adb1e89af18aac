// Advantage functions on cores, as a task of the pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cpu/pool.h"
#include "cpu/target.h"
#include "engine/advantages.h"
#include "engine/groups.h"

namespace policy_loss::cpu {

class AdvantageEvaluation : public Task {
 public:
  AdvantageEvaluation(AdvantageFunction function, const AdvantageBatch& batch,
                      const AdvantageOutputs& outputs, uint64_t seed, double* not_finite_row);

  void set_abort_flag(const int32_t* flag) { abort_ = flag; }
  void abort() { aborted_.store(true, std::memory_order_relaxed); }
  bool aborted() const { return aborted_.load(std::memory_order_relaxed); }
  // Where a number is not finite, what the call has written means nothing, but for the number's row in
  // *not_finite_row.
  const NonFiniteValue& not_finite() const { return not_finite_; }

  // Whether memory ran out, which ends the task; results then mean nothing.
  bool out_of_memory() const { return out_of_memory_.load(std::memory_order_relaxed); }

  bool is_small() const { return chunks_.size() <= 1; }
  int64_t next_phase() override;
  void run(int64_t piece) override;
  void done() override {}

 private:
  bool check_abort();
  void run_out_of_memory();
  int64_t open_phase();
  void work(int64_t piece);
  bool blame();  // gathers what the chunks have found; whether they have found any
  int64_t chunks() const { return static_cast<int64_t>(chunks_.size()); }

  // Of group functions: the groups, then each group's scores, then the tokens.
  int64_t next_group_phase();
  void find_units();
  void score_groups(int64_t piece);
  template <class F>
  void score_group(const F& f, int64_t group, std::vector<double>* values);
  void count_repeats();

  // Of recurrences that are whitened, what is to be known for that; then the rows.
  int64_t next_recurrence_phase();

  void finish_distillation();

  AdvantageFunction function_;
  AdvantageBatch batch_;
  AdvantageOutputs outputs_;
  uint64_t seed_;
  double* not_finite_row_;
  const int32_t* abort_ = nullptr;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> out_of_memory_{false};
  NonFiniteValue not_finite_;

  int phase_ = 0;
  AdvantagePass pass_{};
  bool whitened_ = false;
  bool needs_statistics_ = false;
  std::vector<Chunk> chunks_;
  std::vector<NonFiniteValue> bad_;     // of each chunk
  std::vector<Spread> spreads_;         // of each chunk, of recurrences
  std::vector<double> parts_;           // two a chunk, of distillation
  std::vector<double> row_sums_;        // two a row, likewise
  std::vector<double> row_statistics_;  // per row

  Groups groups_;
  std::vector<double> unit_rewards_;
  double batch_std_ = 1;
  std::vector<GroupRule> rules_;
  std::vector<double> group_rows_;
  std::vector<float> scores_;
  std::vector<uint32_t> repeats_;
};

}  // namespace policy_loss::cpu

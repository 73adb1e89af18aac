// The selections of a program among the values that the tokens of all rows keep (see program/program.h).
//
// A pass over the rows has stored the values before. The selections that follow it do not depend on each
// other. Each further pass over the stored values finds one digit of the key of every selection's result (see
// program/select.h). When few values begin with the digits found so far, a pass gathers them, and the other
// digits are found among these. A last pass finds the row in which the place of a result is, if a place is
// wanted. The results do not depend on the order in which threads work, because the sums are of integers.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "cpu/target.h"
#include "program/select.h"

namespace policy_loss::cpu {

class Selections {
 public:
  // Begin the selections in the pass's segments, and end a pass over the stored values. Return whether
  // another pass is needed. Otherwise, the results are in the batch values.
  bool begin(const TokenPass& pass);
  bool next(const TokenPass& pass);
  // Releases the memory.
  void clear() { searched_ = {}; }
  // Computes the rows of a chunk for the current pass. Several threads may call it at the same time.
  void run(const TokenPass& pass, const Chunk& chunk);

 private:
  // The key of a value, and how often the value counts.
  struct CountedKey {
    uint32_t key, count;
  };
  // A search for the value by which one or several selections are answered.
  struct Searched {
    int gathered;  // the row value of row_gather
    program::Operand by;
    bool by_sum;
    Search search;
    std::vector<Bin> bins = std::vector<Bin>(kMaxBins);
    bool gathers = false;            // whether the pass gathers keys instead of counting them
    std::vector<CountedKey> keys{};  // what was gathered: all that begin with the digits of `narrowed`
    Search narrowed = search;        // the search before it went on among the keys, or at its end
    bool wants_place = false;
    std::vector<uint64_t> ties{};  // per row, if a place is wanted: the values that equal the result

    void choose();
    void finish();
    bool look_for_rank(double rank);
  };
  struct Answer {
    int out;  // the batch value
    bool is_place;
    size_t searched;
  };

  void add(const TokenPass& pass, const program::Instruction& x);
  Searched start(const TokenPass& pass, const program::Instruction& x, bool by_sum) const;
  bool needs_pass(const TokenPass& pass);
  void count(const TokenPass& pass, const Chunk& chunk, Searched* searched);
  void gather(const TokenPass& pass, const Chunk& chunk, Searched* searched);
  double place_of(const TokenPass& pass, const Searched& searched) const;

  // The searches, those of earlier selections first: a later selection often wants an earlier result, or the
  // value next to it.
  std::vector<Searched> searched_;
  size_t first_ = 0;  // the first search of the current selections
  std::vector<Answer> answers_;
  bool counts_ties_ = false;
  std::mutex mutex_;  // protects the bins and the keys while threads add to them
};

}  // namespace policy_loss::cpu

// The selections of programs (see program/program.h) among the kept values of all rows, on the CPU.
//
// The kept values are not stored. A pass over the rows computes them tile by tile, and gathers only what the
// search needs: the number and the sum of the values below some limit, the number of values that equal this
// limit or another one, and the few values between the two, which are the candidates. A sample of the values
// tells which limits probably enclose the result. If they do not, the pass runs again with wider ones. The
// sums are added up row by row, and the rest are integers, so the result does not depend on the order in
// which threads work.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/gathering.h"
#include "cpu/target.h"
#include "program/select.h"

namespace policy_loss::cpu {

// Runs the selections over all rows of one evaluation.
class Selector {
 public:
  Selector();
  ~Selector();

  // Prepares a pass over the segments before a batch segment: has it gather what the selections will probably
  // need. If takes_sample() is true then, `pass` takes a sample instead. It must be run, and end_sample()
  // prepares the actual pass.
  void prepare(TokenPass* pass);
  bool takes_sample() const { return sampling_.selection != nullptr; }
  void end_sample(TokenPass* pass);

  // Runs the selections in the pass's segments, and writes their results to the batch values. Returns true if
  // they need another pass. It must be run before the next call.
  bool next(TokenPass* pass);

 private:
  using Instruction = program::Instruction;

  void start(const TokenPass& pass);
  KeptValues& values_of(const TokenPass& pass, int kept);
  bool is_known(const TokenPass& pass, const program::Operand& x, double* value) const;
  void gather(TokenPass* pass, const Gathering& wanted);
  bool run(TokenPass* pass, const Instruction& x);
  bool find_rank(TokenPass* pass, KeptValues* values, program::Op op, double by, double* result);
  bool find_by_sum(TokenPass* pass, KeptValues* values, program::Op op, double by, double* result);

  // A sample that is taken for a selection, and the pass that it is for. If the sample also estimates what is
  // selected by, its pass has row values and batch values of its own.
  struct Sampling {
    const Instruction* selection = nullptr;
    ProgramPass pass{};
    std::vector<double> row_values, batch_values;
  };

  bool started_ = false;
  int64_t first_row_ = -1;  // the first row that takes part, or -1
  double total_ = 0;        // how many values each row_keep keeps
  std::unique_ptr<KeptValues> values_[program::kMaxKept];
  Sampling sampling_;
  Gathering gathering_{};
  // The selection that needs another pass, or -1, and the segments of the pass that it belongs to.
  int at_ = -1;
  int first_segment_ = 0, last_segment_ = 0;
  int attempts_ = 0;  // of this selection
};

}  // namespace policy_loss::cpu

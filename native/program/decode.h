// Decodes and checks the programs that JavaScript passes.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace policy_loss::program {

// A program as JavaScript passes it. `code` has six numbers per instruction: the operation, `out` and four
// operands. An operand is 65536·kind + index.
struct Encoded {
  const int32_t* code = nullptr;
  int64_t code_length = 0;
  const double* constants = nullptr;
  int64_t constant_count = 0;
  double registers = 0, row_values = 0, batch_values = 0, metrics = 0, batch_metrics = 0;
  bool all_rows = false;
};

// A program and the memory that holds it.
class Program {
 public:
  Program() = default;
  // Throws std::invalid_argument if the program breaks a rule of program.h. So the engines need no checks.
  explicit Program(const Encoded& encoded);

  ProgramView view() const;

 private:
  void find_compiled();

  std::vector<Instruction> instructions_;
  std::vector<Segment> segments_;
  std::vector<double> constants_;
  std::vector<Operand> uniforms_;
  ProgramView sizes_;  // without the arrays
};

}  // namespace policy_loss::program

// Kernels with deliberate mistakes, and some without. The emulation must report each mistake, and nothing
// else.
#pragma once

#include <string>
#include <vector>

struct BrokenKernel {
  const char* name;
  const char* expected;  // a part of the emulation's message; empty if the kernel is sound
  std::string (*run)();  // returns the emulation's message
};

const std::vector<BrokenKernel>& broken_kernels();

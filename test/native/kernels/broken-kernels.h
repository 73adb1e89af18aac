// Kernels that are broken on purpose. The emulation must find what is wrong with each.
#pragma once

#include <string>
#include <vector>

struct BrokenKernel {
  const char* name;
  const char* expected;  // a part of the emulation's message; empty if the kernel is sound
  std::string (*run)();  // returns the emulation's message
};

const std::vector<BrokenKernel>& broken_kernels();

// Kernels that are broken on purpose, each in a way that the emulation must find.
#pragma once

#include <string>
#include <vector>

struct BrokenKernel {
  const char* name;
  const char* expected;  // in what the emulation says; empty where the kernel is in order
  std::string (*run)();
};

const std::vector<BrokenKernel>& broken_kernels();

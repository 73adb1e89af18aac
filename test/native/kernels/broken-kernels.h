// Kernels with deliberate mistakes, and some without. The emulation must report each mistake, and nothing
// else.
#pragma once

#include <string>
#include <vector>

#include "address_sanitizer.h"

struct BrokenKernel {
  const char* name;
  const char* expected;  // a part of the emulation's message; empty if the kernel is sound
  std::string (*run)();  // returns the emulation's message
  // Whether AddressSanitizer, in a build with it, ends the process before the emulation finds the mistake.
  bool ends_sanitized_process = false;
};

const std::vector<BrokenKernel>& broken_kernels();
const std::vector<BrokenKernel>& broken_copies();
const std::vector<BrokenKernel>& planted_faults();

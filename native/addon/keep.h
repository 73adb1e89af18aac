// Keeps what Node-API would release too early: the memory of an ArrayBuffer that is transferred while a call
// reads it, and the addon's code after the last JavaScript thread that loaded it has ended.
#pragma once

#include <napi.h>

namespace policy_loss::addon {

// Returns another ArrayBuffer on the same memory. The memory lives on even if the first buffer is transferred
// (structuredClone, postMessage) and its new owner drops it. Returns null if the process does not export V8's
// functions.
napi_value second_buffer(napi_value buffer);

// Keeps the memory of all arrays that this thread reads while the object exists, so that other threads can
// use it later. Objects can nest, because reading a caller's property may run a getter that makes another
// call.
class ReadForLater {
 public:
  explicit ReadForLater(Napi::Env env);
  ~ReadForLater();
  ReadForLater(const ReadForLater&) = delete;

  // Returns the innermost object of this thread, or null.
  static ReadForLater* current();

  void read(napi_value buffer);
  // Returns the second buffers of all buffers that were read. Whoever holds them keeps the memory.
  Napi::Array kept() const { return kept_; }

 private:
  ReadForLater* const outer_;
  Napi::Array kept_;
};

// Keeps the addon loaded until the process ends, because its threads continue to run.
void stay_loaded();

}  // namespace policy_loss::addon

// What Node-API lets go of too early: memory that a transferred ArrayBuffer gives away while a call still
// reads it, and the addon's own code when the last thread of JavaScript that has loaded it ends.
#pragma once

#include <napi.h>

namespace policy_loss::addon {

// An ArrayBuffer of its own on the memory of this one: whoever holds it keeps the memory, even where the
// first is transferred (structuredClone, postMessage) and its new owner forgets it. Null where the process
// has not the functions of V8 that this needs.
napi_value second_buffer(napi_value buffer);

// While one lives, the arrays that this thread reads are for work that goes on later, and their memory is
// kept. A getter of the caller's may make calls of its own in the midst of it, for later or not.
class ReadForLater {
 public:
  explicit ReadForLater(Napi::Env env);
  ~ReadForLater();
  ReadForLater(const ReadForLater&) = delete;

  // The innermost of this thread, null where there is none.
  static ReadForLater* current();

  void read(napi_value buffer);
  // Second buffers of those that were read.
  Napi::Array kept() const { return kept_; }

 private:
  ReadForLater* const outer_;
  Napi::Array kept_;
};

// Leaves the addon in the process to its end: its own threads go on.
void stay_loaded();

}  // namespace policy_loss::addon

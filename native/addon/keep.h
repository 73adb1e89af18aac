// What Node-API lets go of too early: memory that a transferred ArrayBuffer gives away while a call still
// reads it, and the addon's own code when the last thread of JavaScript that has loaded it ends.
#pragma once

#include <napi.h>

#include <vector>

namespace policy_loss::addon {

// An ArrayBuffer of its own on the memory of this one: whoever holds it keeps the memory, even where the
// first is transferred (structuredClone, postMessage) and its new owner forgets it. Null where the process
// has not the functions of V8 that this needs.
napi_value second_buffer(napi_value buffer);

// While one lives, this thread notes down the buffers of the arrays that it reads, for work that goes on
// later.
class ReadForLater {
 public:
  ReadForLater();
  ~ReadForLater();
  ReadForLater(const ReadForLater&) = delete;
};

// Notes a buffer down, where one is wanted.
void note_buffer(napi_value buffer);
// Those noted down so far.
const std::vector<napi_value>& noted_buffers();

// Leaves the addon in the process to its end: its own threads go on.
void stay_loaded();

}  // namespace policy_loss::addon

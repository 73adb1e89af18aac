// Keeps two things that Node-API would release too early. One is the memory of an ArrayBuffer that is
// transferred while a call reads it. The other is the addon's code, after the last JavaScript thread that
// loaded it has ended.
#pragma once

#include <napi.h>

#include <vector>

#include "addon/backing_store.h"

namespace policy_loss::addon {

// Returns another ArrayBuffer on the memory of `buffer`. The memory stays valid even if `buffer` is
// transferred (by structuredClone or postMessage) and its new owner drops it. Returns null if the process
// does not export the V8 functions that are needed.
napi_value second_buffer(napi_value buffer);

// While an object of this class exists, it becomes an owner of the memory of every array that the current
// thread reads from JavaScript, which keeps the memory valid for other threads. Where can_own_stores() is
// false, it collects second buffers instead. Objects can nest, because reading a caller's property may run a
// getter that makes another call.
class ReadForLater {
 public:
  explicit ReadForLater(Napi::Env env);
  ~ReadForLater();
  ReadForLater(const ReadForLater&) = delete;

  // Returns the innermost object on the current thread, or null if there is none.
  static ReadForLater* current();

  // `data` is the array's first element.
  void read(napi_value buffer, const void* data);
  // Returns what keeps the memory of all arrays that were read, or nothing if take_memory() keeps all of it.
  // The memory stays valid as long as the returned array is referenced.
  Napi::Array kept() const { return kept_; }
  // Returns whether take_memory() keeps all of it.
  bool owns_all() const { return owns_all_; }
#if defined(__linux__)
  // The same for the memory that kept() does not keep.
  std::vector<OwnedStore> take_memory() {
    return std::move(memory_);
  }
#endif

 private:
  void keep(const Napi::Value& value);

  ReadForLater* const outer_;
  const Napi::Env env_;
  Napi::Array kept_;
  bool owns_all_ = true;
#if defined(__linux__)
  std::vector<OwnedStore> memory_;
#endif
};

// Keeps the addon loaded until the process ends, because the addon's threads run until then.
void stay_loaded();

}  // namespace policy_loss::addon

// Memory for results that is used again. The pages of new memory are mapped one by one when they are first
// written, which can take longer than computing a gradient. The pages of a recycled block are there already.
#pragma once

#include <napi.h>

#if defined(__linux__)

#include <memory>

namespace policy_loss::addon {

// The blocks of memory for the results of one JavaScript thread. ArrayBuffers on them behave like any other.
// A block can be lent again when its last owner is gone, on whatever thread that was. V8 does not count the
// memory of these ArrayBuffers itself, but is told about each block from its creation until it is freed.
class Recycler {
 public:
  // The smallest size that take() gives. Smaller arrays are faster to allocate and clear.
  static constexpr size_t kLeastBytes = 65'536;

  Recycler();
  ~Recycler();

  // Returns an ArrayBuffer of this size with any content, or null if there is too much memory in use already.
  napi_value take(Napi::Env env, size_t bytes);
  // Frees the blocks that are not in use.
  void clear(Napi::Env env);

 private:
  struct Block;
  struct Unused;
  Block* new_block(Napi::Env env, size_t bytes);
  void free_block(Napi::Env env, Block* block);

  std::shared_ptr<Unused> unused_;
  size_t all_bytes_ = 0;  // of the blocks in use and of those that are not
};

// Adds the functions that binding.d.ts describes for recycling.
void add_recycling(Napi::Env env, Napi::Object exports);

}  // namespace policy_loss::addon

#endif

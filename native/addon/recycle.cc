#include "addon/recycle.h"

#if defined(__linux__)

#include <sys/mman.h>

#include <mutex>
#include <new>
#include <vector>

#include "addon/async.h"
#include "addon/backing_store.h"
#include "addon/read.h"

namespace policy_loss::addon {
namespace {

// The most bytes of one thread's blocks, in use or not.
constexpr size_t kMostBytes = size_t{128} << 20;

void tell_v8(napi_env env, int64_t bytes) {
  int64_t told = 0;
  napi_adjust_external_memory(env, bytes, &told);
}

}  // namespace

// The blocks that can be lent. Blocks outlive the Recycler if their ArrayBuffers were transferred to another
// thread.
struct Recycler::Unused {
  std::mutex mutex;
  std::vector<Block*> blocks;  // in the order in which their last owners went
  bool closed = false;         // whether the Recycler is gone
};

struct Recycler::Block {
  OwnerCount count;  // must be the first member
  std::shared_ptr<Unused> unused;
  size_t bytes;
  void* data;
  void* store;

  static void nothing(OwnerCount*) {}
  // Called on any thread when the last owner is gone.
  static void give_back(OwnerCount* count) {
    Block* const block = reinterpret_cast<Block*>(count);
    const std::shared_ptr<Unused> unused = block->unused;
    {
      const std::lock_guard lock(unused->mutex);
      if (!unused->closed) {
        unused->blocks.push_back(block);  // has the capacity
        return;
      }
    }
    delete block;
  }
  static constexpr OwnerCount::Action kActions[] = {nothing, nothing, nothing, give_back, nothing};

  ~Block() {
    if (store) {
      Stores::found().destroy(store);
      ::operator delete(store);
    }
    munmap(data, bytes);
  }
};

Recycler::Recycler() : unused_(std::make_shared<Unused>()) {
  unused_->blocks.reserve(kMostBytes / kLeastBytes);
}

Recycler::~Recycler() {
  std::vector<Block*> blocks;
  {
    const std::lock_guard lock(unused_->mutex);
    unused_->closed = true;
    blocks.swap(unused_->blocks);
  }
  for (Block* const block : blocks) delete block;
}

napi_value Recycler::take(Napi::Env env, size_t bytes) {
  if (bytes < kLeastBytes || bytes > kMostBytes || !can_own_stores(env)) return nullptr;
  Block* block = nullptr;
  {
    const std::lock_guard lock(unused_->mutex);
    std::vector<Block*>& blocks = unused_->blocks;
    // Looks for the block that was used last, because parts of it may still be in the caches.
    for (size_t i = blocks.size(); i-- > 0 && !block;) {
      if (blocks[i]->bytes != bytes) continue;
      block = blocks[i];
      blocks.erase(blocks.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  if (!block) block = new_block(env, bytes);
  if (!block) return nullptr;
  const Stores& v8 = Stores::found();
  block->count = {Block::kActions};
  return v8.make(v8.isolate(), StorePointer(block->store, &block->count));
}

Recycler::Block* Recycler::new_block(Napi::Env env, size_t bytes) {
  while (all_bytes_ + bytes > kMostBytes) {
    Block* oldest = nullptr;
    {
      const std::lock_guard lock(unused_->mutex);
      if (unused_->blocks.empty()) return nullptr;
      oldest = unused_->blocks.front();
      unused_->blocks.erase(unused_->blocks.begin());
    }
    free_block(env, oldest);
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, bytes, MADV_HUGEPAGE);  // so that fewer pages must be mapped; may fail
  const Stores& v8 = Stores::found();
  auto* const block = new Block{{Block::kActions}, unused_, bytes, data, nullptr};
  block->store = v8.wrap(data, bytes, v8.keep, nullptr).object;
  all_bytes_ += bytes;
  tell_v8(env, static_cast<int64_t>(bytes));
  return block;
}

void Recycler::free_block(Napi::Env env, Block* block) {
  all_bytes_ -= block->bytes;
  tell_v8(env, -static_cast<int64_t>(block->bytes));
  delete block;
}

void Recycler::clear(Napi::Env env) {
  std::vector<Block*> blocks;
  {
    const std::lock_guard lock(unused_->mutex);
    blocks = unused_->blocks;
    unused_->blocks.clear();
  }
  for (Block* const block : blocks) free_block(env, block);
}

void add_recycling(Napi::Env env, Napi::Object exports) {
  const auto add = [&](const char* name, auto function) {
    exports.Set(name, Napi::Function::New(env, function, name));
  };
  add("takeRecycled", [](const Napi::CallbackInfo& info) {
    return guarded(info, [&] {
      const auto bytes = static_cast<size_t>(info[0].ToNumber().Int64Value());
      return Napi::Value(info.Env(), Instance::of(info.Env()).recycler.take(info.Env(), bytes));
    });
  });
  add("clearRecycled", [](const Napi::CallbackInfo& info) {
    Instance::of(info.Env()).recycler.clear(info.Env());
    return info.Env().Undefined();
  });
}

}  // namespace policy_loss::addon

#endif

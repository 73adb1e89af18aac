#include "addon/pinned.h"

#include <atomic>
#include <map>
#include <mutex>

#include "addon/device_work.h"
#include "addon/read.h"

namespace policy_loss::addon {
namespace {

// The blocks in use, by address. Never destroyed, because blocks may be freed while the process ends.
class Blocks {
 public:
  static Blocks& all() {
    static Blocks* const blocks = new Blocks;
    return *blocks;
  }

  void add(const void* begin, int64_t bytes, const PinnedHandle& block) {
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<const char*>(begin)] = {bytes, block};
    any_ = true;
  }
  void remove(const void* begin) {
    const std::lock_guard lock(mutex_);
    blocks_.erase(static_cast<const char*>(begin));
    any_ = !blocks_.empty();
  }
  PinnedHandle find(const void* address) {
    if (!any_) return nullptr;  // spares most programs the lock
    const std::lock_guard lock(mutex_);
    const auto next = blocks_.upper_bound(static_cast<const char*>(address));
    if (next == blocks_.begin()) return nullptr;
    const auto& [begin, entry] = *std::prev(next);
    return address < begin + entry.bytes ? entry.block.lock() : nullptr;
  }

 private:
  struct Entry {
    int64_t bytes;
    std::weak_ptr<cuda::PinnedBlock> block;
  };
  std::mutex mutex_;
  std::map<const char*, Entry> blocks_;
  std::atomic<bool> any_ = false;  // whether there are blocks
};

// Returns an ArrayBuffer on a block, which keeps the block until it is collected or detached.
Napi::Value buffer_on(Napi::Env env, const PinnedHandle& block, int64_t bytes) {
  auto kept = std::make_unique<PinnedHandle>(block);
  napi_value buffer = nullptr;
  const napi_status status = napi_create_external_arraybuffer(
      env, cuda::pinned_data(block.get()), static_cast<size_t>(bytes),
      [](auto, void*, void* last) { delete static_cast<PinnedHandle*>(last); }, kept.get(), &buffer);
  if (status == napi_ok) {
    kept.release();
    return Napi::Value(env, buffer);
  }
  throw coded_error(env, "ERR_DEVICE_UNAVAILABLE",
                    "this program does not allow an ArrayBuffer on memory that it did not allocate");
}

}  // namespace

PinnedHandle pinned_block_at(const void* address) {
  return Blocks::all().find(address);
}

// Implements allocPinned(device, bytes), which binding.d.ts describes.
Napi::Value alloc_pinned(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    const int device = info[0].ToNumber().Int32Value();
    const int64_t bytes = info[1].ToNumber().Int64Value();
    if (bytes <= 0) refuse(info.Env(), "the number of bytes is not positive");
    auto work = std::make_shared<Work>();
    auto block = std::make_shared<PinnedHandle>();
    work->device = device;
    work->kind = CallKind::kUploading;
    work->run = [=](const int32_t*, cuda::Problem* problem) {
      cuda::PinnedBlock* made = nullptr;
      const cuda::Status status = cuda::make_pinned(device, bytes, &made, problem);
      if (!made) return status;
      // Freeing waits for the devices, so the thread of the device's calls does it.
      const std::shared_ptr<cuda::PinnedBlock> freed = handle_of(made, device);
      const void* const begin = cuda::pinned_data(made);
      *block = PinnedHandle(made, [freed, begin](cuda::PinnedBlock*) { Blocks::all().remove(begin); });
      Blocks::all().add(begin, bytes, *block);
      return status;
    };
    work->value = [=](Napi::Env env) { return buffer_on(env, *block, bytes); };
    return perform(info, work, true);
  });
}

// Implements freePinned(buffer): detaches the ArrayBuffer, which drops its reference to the block.
Napi::Value free_pinned(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  Napi::ArrayBuffer buffer = info[0].As<Napi::ArrayBuffer>();
  if (!pinned_block_at(buffer.Data())) return Napi::Boolean::New(env, false);
  buffer.Detach();
  return Napi::Boolean::New(env, true);
}

}  // namespace policy_loss::addon

#include "addon/keep.h"

#include <utility>

#include "addon/async.h"
#include "addon/pinned.h"
#include "addon/read.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace policy_loss::addon {
namespace {

thread_local ReadForLater* innermost = nullptr;

// As many arrays as most calls read, or more.
constexpr size_t kUsualArrays = 16;

}  // namespace

ReadForLater::ReadForLater(Napi::Env env) : outer_(innermost), env_(env) {
  innermost = this;
}
ReadForLater::~ReadForLater() {
  innermost = outer_;
}
ReadForLater* ReadForLater::current() {
  return innermost;
}

void ReadForLater::read(napi_value buffer, const void* data) {
  if (PinnedHandle block = pinned_block_at(data)) keep(owned(env_, std::move(block)));
  bool may_be_transferred = false;  // false for a SharedArrayBuffer
  napi_is_arraybuffer(env_, buffer, &may_be_transferred);
#if defined(__linux__)
  if (may_be_transferred && can_own_stores(env_)) {
    if (memory_.empty()) memory_.reserve(kUsualArrays);
    memory_.emplace_back(buffer);
    return;
  }
#endif
  if (may_be_transferred)
    keep(Instance::of(env_).second_buffer_of(buffer));
  else
    owns_all_ = false;
}

void ReadForLater::keep(const Napi::Value& value) {
  owns_all_ = false;
  if (kept_.IsEmpty()) kept_ = Napi::Array::New(env_);
  kept_.Set(kept_.Length(), value);
}

#if defined(_WIN32)

// Always returns null on Windows. The implementation below does not work there, because member functions
// return objects in a different way.
napi_value second_buffer(napi_value) {
  return nullptr;
}

void stay_loaded() {
  HMODULE module;
  GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
                     reinterpret_cast<LPCSTR>(&stay_loaded), &module);
}

#else

napi_value second_buffer(napi_value buffer) {
  const Stores& v8 = Stores::found();
  return v8.can_share() ? v8.make(v8.isolate(), v8.of(buffer)) : nullptr;
}

void stay_loaded() {
  Dl_info module;
  if (dladdr(reinterpret_cast<void*>(&stay_loaded), &module))
    dlopen(module.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

#endif

}  // namespace policy_loss::addon

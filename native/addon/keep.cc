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

}  // namespace

ReadForLater::ReadForLater(Napi::Env env) : outer_(innermost), kept_(Napi::Array::New(env)) {
  innermost = this;
}
ReadForLater::~ReadForLater() {
  innermost = outer_;
}
ReadForLater* ReadForLater::current() {
  return innermost;
}

void ReadForLater::read(napi_value buffer, const void* data) {
  const Napi::Env env = kept_.Env();
  if (PinnedHandle block = pinned_block_at(data)) kept_.Set(kept_.Length(), owned(env, std::move(block)));
  bool may_be_transferred = false;  // false for a SharedArrayBuffer
  napi_is_arraybuffer(env, buffer, &may_be_transferred);
  if (may_be_transferred) kept_.Set(kept_.Length(), Instance::of(env).second_buffer_of(buffer));
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
namespace {

// Takes the place of V8's std::shared_ptr<BackingStore> in calls of V8's functions. Like it, it consists of
// two pointers and is not trivially copyable. V8 sets and clears the pointers, so this code need not know how
// V8's C++ library counts references.
struct StorePointer {
  void* object = nullptr;
  void* count = nullptr;
  StorePointer() = default;
  StorePointer(StorePointer&& other) noexcept : object(other.object), count(other.count) {
    other.object = other.count = nullptr;
  }
  ~StorePointer() {}
};

template <class Signature>
Signature* find(const char* name) {
  return reinterpret_cast<Signature*>(dlsym(RTLD_DEFAULT, name));
}

#if defined(__APPLE__)
constexpr const char* kMake = "_ZN2v811ArrayBuffer3NewEPNS_7IsolateENSt3__110shared_ptrINS_12BackingStoreEEE";
#else
constexpr const char* kMake = "_ZN2v811ArrayBuffer3NewEPNS_7IsolateESt10shared_ptrINS_12BackingStoreEE";
#endif

}  // namespace

// Calls V8's functions by their mangled names. This relies on two facts: a napi_value is a v8::Local, which
// is a pointer to a handle, and a member function takes `this` as its first argument. A version of V8 in
// which they do not hold also gives these functions other mangled names. Then find() returns null, and so
// does this function.
napi_value second_buffer(napi_value buffer) {
  static const auto store_of = find<StorePointer(napi_value)>("_ZN2v811ArrayBuffer15GetBackingStoreEv");
  static const auto make = find<napi_value(void*, StorePointer)>(kMake);
  static const auto isolate = find<void*()>("_ZN2v87Isolate10GetCurrentEv");
  if (!store_of || !make || !isolate) return nullptr;
  return make(isolate(), store_of(buffer));
}

void stay_loaded() {
  Dl_info module;
  if (dladdr(reinterpret_cast<void*>(&stay_loaded), &module))
    dlopen(module.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

#endif

}  // namespace policy_loss::addon

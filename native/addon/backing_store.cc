#include "addon/backing_store.h"

#if !defined(_WIN32)

#include <dlfcn.h>

#include <utility>

namespace policy_loss::addon {
namespace {

template <class Signature>
Signature* find(const char* name) {
  return reinterpret_cast<Signature*>(dlsym(RTLD_DEFAULT, name));
}

#if defined(__APPLE__)
constexpr const char* kMake = "_ZN2v811ArrayBuffer3NewEPNS_7IsolateENSt3__110shared_ptrINS_12BackingStoreEEE";
#else
constexpr const char* kMake = "_ZN2v811ArrayBuffer3NewEPNS_7IsolateESt10shared_ptrINS_12BackingStoreEE";
#endif

#if defined(__linux__)

// How often each action of tested.count was called.
struct Tested {
  OwnerCount count;
  int calls[OwnerCount::kActions] = {};
};
template <int action>
void count_call(OwnerCount* count) {
  ++reinterpret_cast<Tested*>(count)->calls[action];
}

bool can_wrap_memory(napi_env env) {
  static double memory = 0;
  napi_value buffer = nullptr;
  const auto nothing = [](napi_env, void*, void*) {};
  return napi_create_external_arraybuffer(env, &memory, sizeof(memory), nothing, nullptr, &buffer) == napi_ok;
}

bool test_owner_counts(napi_env env) {
  const Stores& v8 = Stores::found();
  if (!v8.can_share() || !v8.wrap || !v8.keep || !v8.destroy || !can_wrap_memory(env)) return false;
  constexpr OwnerCount::Action actions[] = {count_call<0>, count_call<1>, count_call<2>, count_call<3>,
                                            count_call<4>};
  static double memory = 0;
  static Tested tested{{actions}};
  const auto calls = [&](int dispose, int destroy) {
    return tested.calls[OwnerCount::kDispose] == dispose && tested.calls[OwnerCount::kDestroy] == destroy &&
           tested.calls[0] + tested.calls[1] + tested.calls[4] == 0;
  };
  // Stays allocated, because V8 may still own it if the test fails.
  static void* const store = v8.wrap(&memory, sizeof(memory), v8.keep, nullptr).object;
  napi_value buffer = v8.make(v8.isolate(), StorePointer(store, &tested.count));
  if (tested.count.owners != 1) return false;
  {
    const StorePointer other = v8.of(buffer);
    if (other.object != store || other.count != &tested.count || tested.count.owners != 2) return false;
    --tested.count.owners;
  }
  if (!calls(0, 0) || napi_detach_arraybuffer(env, buffer) != napi_ok) return false;
  return calls(1, 1);
}

#endif

}  // namespace

const Stores& Stores::found() {
  static const Stores stores{
      find<StorePointer(napi_value)>("_ZN2v811ArrayBuffer15GetBackingStoreEv"),
      find<napi_value(void*, StorePointer)>(kMake),
      find<void*()>("_ZN2v87Isolate10GetCurrentEv"),
      find<NewStore(void*, size_t, Deleter, void*)>("_ZN2v811ArrayBuffer15NewBackingStoreEPvmPFvS1_mS1_ES1_"),
      find<void(void*, size_t, void*)>("_ZN2v812BackingStore12EmptyDeleterEPvmS1_"),
      find<void(void*)>("_ZN2v812BackingStoreD1Ev"),
  };
  return stores;
}

bool can_own_stores(Napi::Env env) {
#if defined(__linux__)
  static const bool can = test_owner_counts(env);
  return can;
#else
  return env == nullptr;  // other systems count owners in other ways
#endif
}

OwnedStore::~OwnedStore() {
  OwnerCount* const count = store_.count;
  if (!count || __atomic_fetch_sub(&count->owners, 1, __ATOMIC_ACQ_REL) != 1) return;
  count->actions[OwnerCount::kDispose](count);
  if (__atomic_fetch_sub(&count->watchers, 1, __ATOMIC_ACQ_REL) != 1) return;
  count->actions[OwnerCount::kDestroy](count);
}

}  // namespace policy_loss::addon

#endif

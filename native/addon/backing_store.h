// The memory of ArrayBuffers, as V8 shares it: functions of V8 that Node-API lacks, found by their mangled
// names.
#pragma once

#include <napi.h>

#include <cstdint>

#if !defined(_WIN32)

namespace policy_loss::addon {

// Counts the owners of an object as std::shared_ptr of the GNU C++ library does, with which Node is built on
// Linux. The addon may be built with another C++ library.
struct OwnerCount {
  using Action = void (*)(OwnerCount*);

  const Action* actions;  // a virtual table: two destructors, kDispose, kDestroy, and one that is not used
  int32_t owners = 1;
  int32_t watchers = 1;  // weak owners, and 1 for all owners

  static constexpr int kDispose = 2, kDestroy = 3, kActions = 5;
};

// Takes the place of V8's std::shared_ptr<BackingStore> in calls of V8's functions. Like it, it consists of
// two pointers and is not trivially copyable. The functions set and clear the pointers.
struct StorePointer {
  void* object = nullptr;
  OwnerCount* count = nullptr;
  StorePointer() = default;
  StorePointer(void* of, OwnerCount* counted_by) : object(of), count(counted_by) {}
  StorePointer(StorePointer&& other) noexcept : object(other.object), count(other.count) {
    other.object = nullptr;
    other.count = nullptr;
  }
  ~StorePointer() {}
};

// Takes the place of V8's std::unique_ptr<BackingStore>.
struct NewStore {
  void* object = nullptr;
  NewStore() = default;
  NewStore(NewStore&& other) noexcept : object(other.object) { other.object = nullptr; }
  ~NewStore() {}
};

// V8's functions. This relies on two facts: a napi_value is a v8::Local, which is a pointer to a handle, and
// a member function takes `this` as its first argument. A version of V8 in which they do not hold also gives
// these functions other mangled names. Then the pointers are null.
struct Stores {
  using Deleter = void (*)(void*, size_t, void*);

  StorePointer (*of)(napi_value buffer);
  napi_value (*make)(void* isolate, StorePointer);  // makes an ArrayBuffer
  void* (*isolate)();
  NewStore (*wrap)(void* data, size_t bytes, Deleter, void* deleter_data);
  Deleter keep;  // the deleter that does nothing. V8 does not count the memory of a store that has it.
  void (*destroy)(void* store);

  static const Stores& found();
  bool can_share() const { return of && make && isolate; }
};

// Returns whether owners are counted as OwnerCount says, and whether ArrayBuffers may be on memory that V8
// did not allocate. Finds that out once, with a buffer on 8 bytes.
bool can_own_stores(Napi::Env env);

// Owns the memory of an ArrayBuffer, like a std::shared_ptr. Needs can_own_stores().
class OwnedStore {
 public:
  explicit OwnedStore(napi_value buffer) : store_(Stores::found().of(buffer)) {}
  OwnedStore(OwnedStore&&) noexcept = default;
  ~OwnedStore();

 private:
  StorePointer store_;
};

}  // namespace policy_loss::addon

#endif

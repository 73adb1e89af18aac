// Memory for objects of one type, which later objects use again.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace policy_loss::addon {

// The memory that is kept for objects of a type. Any thread may use it.
template <class T>
class Reserve {
 public:
  static Reserve& shared() {
    // It is never destroyed, because threads may free objects while the process ends.
    static Reserve& reserve = *new Reserve;
    return reserve;
  }
  T* take() {
    {
      const std::lock_guard lock(mutex_);
      if (!kept_.empty()) {
        T* const taken = kept_.back();
        kept_.pop_back();
        return taken;
      }
    }
    return std::allocator<T>().allocate(1);
  }
  void give_back(T* memory) {
    {
      const std::lock_guard lock(mutex_);
      if (kept_.size() < kMost) return kept_.push_back(memory);
    }
    std::allocator<T>().deallocate(memory, 1);
  }

 private:
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PL_KEEPS_NOTHING  // so that every use of freed memory is found
#endif
#endif
#if defined(PL_KEEPS_NOTHING)
  static constexpr size_t kMost = 0;
#else
  static constexpr size_t kMost = 64;
#endif

  Reserve() {
    kept_.reserve(kMost);
  }

  std::mutex mutex_;
  std::vector<T*> kept_;
};

// An allocator for std::allocate_shared.
template <class T>
struct ReusingAllocator {
  using value_type = T;
  ReusingAllocator() = default;
  template <class U>
  ReusingAllocator(const ReusingAllocator<U>&) {}
  T* allocate(size_t) { return Reserve<T>::shared().take(); }
  void deallocate(T* memory, size_t) { Reserve<T>::shared().give_back(memory); }
  template <class U>
  bool operator==(const ReusingAllocator<U>&) const {
    return true;
  }
};

}  // namespace policy_loss::addon

// The little of a standard library that CUDA's host side takes. Its objects are compiled by nvcc's host
// compiler and may be linked by another one into an addon with another C++ library, so they use neither a
// type nor a symbol of one that holds anything: locks and clocks are the system's.
#pragma once

#include <pthread.h>
#include <time.h>

namespace policy_loss::cuda {

class Mutex {
 public:
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class Lock {
 public:
  explicit Lock(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  Lock(const Lock&) = delete;
  ~Lock() { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

// Nanoseconds of a clock that only goes forward.
inline long long now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

// Less than a second.
inline void sleep_for(long long nanoseconds) {
  const timespec time{0, static_cast<long>(nanoseconds)};
  nanosleep(&time, nullptr);
}

}  // namespace policy_loss::cuda

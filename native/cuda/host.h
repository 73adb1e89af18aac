// A mutex, a clock and a sleep function for CUDA's host code, made from the system's C functions.
//
// nvcc's host compiler may use a different C++ standard library than the addon, which links the compiled
// code. CUDA's host code therefore uses nothing of the standard library that has state.
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

// Returns the time of a monotonic clock in nanoseconds.
inline long long now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

// Sleeps for the given time, which must be less than a second.
inline void sleep_for(long long nanoseconds) {
  const timespec time{0, static_cast<long>(nanoseconds)};
  nanosleep(&time, nullptr);
}

}  // namespace policy_loss::cuda

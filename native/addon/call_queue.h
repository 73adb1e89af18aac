// A queue of calls for each CUDA device. One thread per device runs the calls one after another and waits for
// the device. So neither the event loop nor Node's own worker threads have to wait.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace policy_loss::addon {

class CallQueue {
 public:
  // Returns the queue of a device. Queues are never destroyed. Their threads end with the process.
  static CallQueue& of(int device);
  void post(std::function<void()> work);

 private:
  CallQueue();
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
};

}  // namespace policy_loss::addon

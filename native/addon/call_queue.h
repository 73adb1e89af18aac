// A thread for each device, which runs the device's calls one after another. It waits for the device, so that
// the event loop and Node's own worker threads need not.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace policy_loss::addon {

class CallQueue {
 public:
  // Returns the queue of a device. Queues are never destroyed; their threads end with the process.
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

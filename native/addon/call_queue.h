// A thread that runs the calls of one device, one after another. Neither the event loop nor Node's file
// threads then wait for the device.
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

// A thread that does one thing after another: what waits for a device, so that neither the event loop nor the
// threads that Node reads files with have to.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace policy_loss::addon {

class Lane {
 public:
  // The lane of a device. Lanes are never destroyed: their threads end with the process.
  static Lane& of(int device);
  void post(std::function<void()> work);

 private:
  Lane();
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
};

}  // namespace policy_loss::addon

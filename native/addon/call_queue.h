// Two queues of calls for each CUDA device: one for calls that compute and one for uploads, so that these do
// not wait for each other. One thread per queue runs its calls one after another and waits for the device. So
// neither the event loop nor Node's own worker threads have to wait.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace policy_loss::addon {

enum class CallKind { kComputing, kUploading };

class CallQueue {
 public:
  // Returns a queue of a device. Queues are never destroyed. Their threads end with the process.
  static CallQueue& of(int device, CallKind kind);
  void post(std::function<void()> work);

 private:
  CallQueue();
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
};

}  // namespace policy_loss::addon

#include "addon/call_queue.h"

#include <map>
#include <thread>
#include <utility>

#include "cuda/cuda.h"

namespace policy_loss::addon {

CallQueue& CallQueue::of(int device, CallKind kind) {
  static std::mutex mutex;
  static auto* const queues = new std::map<std::pair<int, CallKind>, CallQueue*>;
  std::lock_guard lock(mutex);
  CallQueue*& queue = (*queues)[{device, kind}];
  if (!queue) queue = new CallQueue;
  return *queue;
}

CallQueue::CallQueue() {
  std::thread([this] { loop(); }).detach();
}

void CallQueue::post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void CallQueue::loop() {
  cuda::keep_current_device();
  while (true) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return !waiting_.empty(); });
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
  }
}

}  // namespace policy_loss::addon

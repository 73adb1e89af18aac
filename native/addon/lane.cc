#include "addon/lane.h"

#include <map>
#include <thread>

namespace policy_loss::addon {

Lane& Lane::of(int device) {
  static std::mutex mutex;
  static std::map<int, Lane*>* const lanes = new std::map<int, Lane*>;
  std::lock_guard lock(mutex);
  Lane*& lane = (*lanes)[device];
  if (!lane) lane = new Lane;
  return *lane;
}

Lane::Lane() {
  std::thread([this] { loop(); }).detach();
}

void Lane::post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void Lane::loop() {
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

// Emulates streams and events. The work of a stream runs as late as possible: when the host or another stream
// waits for it. So if the engine relies on an order that no event enforces, its results are wrong and tests
// notice. If shuffling is on, a stream may also run early.
//
// Streams and events are never destroyed, because streams may still hold work when the process ends.
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "machine.h"

namespace emulation {
namespace {

auto& streams = *new std::vector<std::unique_ptr<Stream>>;
auto& events = *new std::vector<std::unique_ptr<Event>>;
int64_t streams_in_use = 0, events_in_use = 0;

}  // namespace

void Stream::push(std::function<void()> work) {
  queue_.push_back(std::move(work));
  ++pushed_;
}

void Stream::run_until(uint64_t count) {
  while (done_ < count) {
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    ++done_;
    if (!has_fault()) work();  // after a fault, a device does nothing more
  }
}

Stream* make_stream(int device) {
  ++streams_in_use;
  return streams.emplace_back(std::make_unique<Stream>(device)).get();
}

Event* make_event(int device) {
  ++events_in_use;
  return events.emplace_back(std::make_unique<Event>(device)).get();
}

Stream* find_stream(Stream* handle, int device) {
  static auto& of_device = *new std::map<int, Stream*>;
  if (!handle) {
    Stream*& found = of_device[device];
    if (!found) found = streams.emplace_back(std::make_unique<Stream>(device)).get();
    return found;
  }
  for (const auto& stream : streams)
    if (stream.get() == handle && !stream->destroyed) return handle;
  return nullptr;
}

void destroy(Stream* stream) {
  stream->destroyed = true;
  --streams_in_use;
}

void destroy(Event*) {
  --events_in_use;
}

void count_streams(Holdings* found) {
  found->streams = streams_in_use;
  found->events = events_in_use;
}

void run_all_streams() {
  for (const auto& stream : streams) stream->run_until(stream->pushed());
}

void enqueue(Stream* stream, std::function<void()> work) {
  stream->push(std::move(work));
  static std::mt19937_64 random(1);
  if (has_fault()) return;
  if (shuffle_seed() != 0 && random() % 4 == 0) stream->run_until(stream->pushed());
}

}  // namespace emulation

// Fibers are separate stacks, and one host thread jumps between them. The emulation runs each thread of a
// CUDA block on a fiber of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace emulation {

// The fibers of one block. Several host threads may use them, but only one at a time.
class Fibers {
 public:
  // All fibers call body() in an endless loop. Before body() returns, it must call switch_to() or leave().
  explicit Fibers(void (*body)()) : body_(body) {}

  // Creates fibers until n of them exist.
  void make(size_t n);
  // Destroys all fibers, even those that stopped in the middle of body().
  void drop() { fibers_.clear(); }

  // Continues this fiber. Returns when a fiber calls leave() or abandon(). Must be called from the host
  // thread's own stack, not on a fiber.
  void run(size_t fiber);

  // switch_to() continues the fiber `to`; leave() makes run() return. Both must be called on the fiber
  // `from`, and return when `from` is continued.
  void switch_to(size_t from, size_t to);
  void leave(size_t from);

  // Makes run() return. The fiber that called abandon() must not be continued afterwards.
  [[noreturn]] void abandon();

 private:
  // The place at which a stack continues. This is the buffer of __builtin_setjmp().
  using Place = void* [5];

  struct Stack {
    Place place;
    const void* bottom = nullptr;
    size_t bytes = 0;
    void* saved = nullptr;  // the sanitizer's own state while this stack waits
  };
  struct Fiber {
    Stack stack;
    std::unique_ptr<char[]> memory;
    bool started = false;
  };

  static void enter_fiber();
  void before_jump(Stack& from, const Stack& to, bool comes_back);
  void after_jump();
  [[noreturn]] void jump(Stack& to);
  [[noreturn]] void go_to(Fiber& fiber);

  std::vector<Fiber> fibers_;
  void (*const body_)();
  Stack outside_;             // the host thread's stack
  Stack* left_ = nullptr;     // the stack that was left last
  Stack* entered_ = nullptr;  // the stack that was entered last
};

}  // namespace emulation

// Implements fibers with the compiler's built-in jumps. These save only the position on a stack, so switching
// between fibers is cheap. This makes it possible to have a fiber for each thread of a block.
#include "fibers.h"

#include <ucontext.h>

#include <memory>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#include <sanitizer/common_interface_defs.h>
#endif
#endif

// AddressSanitizer must be told before and after each jump which stack is in use. The functions that jump are
// not instrumented, because AddressSanitizer would think that a jump ends the frames of the stack.
#if ADDRESS_SANITIZER
#define PLAIN __attribute__((noinline, no_sanitize("address")))
#else
#define PLAIN __attribute__((noinline))
#endif

namespace emulation {
namespace {

// The size of a fiber's stack. It is not a power of two, because then the tops of all stacks would share one
// set of the CPU cache.
constexpr size_t kStackBytes = 32 * 1024 + 192;

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

std::vector<Fiber> fibers;
void (*body_of_fibers)() = nullptr;
Stack outside;             // the host thread's stack
Stack* left = nullptr;     // the stack that was left last
Stack* entered = nullptr;  // the stack that was entered last

void before_jump(Stack& from, const Stack& to, bool comes_back) {
  left = &from;
#if ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(comes_back ? &from.saved : nullptr, to.bottom, to.bytes);
#else
  (void)to;
  (void)comes_back;
#endif
}

void after_jump() {
#if ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(entered->saved, &left->bottom, &left->bytes);
#endif
}

// This is a separate function, because the function that has called __builtin_setjmp() must not call
// __builtin_longjmp().
[[noreturn]] PLAIN void jump(Stack& to) {
  entered = &to;
  __builtin_longjmp(to.place, 1);
}

// The function that a fiber runs for ever. The same fibers serve all blocks: entering a new stack takes
// system calls, but jumping back to a stack takes none.
void enter_fiber() {
  after_jump();
  for (;;) body_of_fibers();
}

[[noreturn]] PLAIN void go_to(Fiber& fiber) {
  if (fiber.started) jump(fiber.stack);
  fiber.started = true;
  entered = &fiber.stack;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.memory.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, enter_fiber, 0);
  setcontext(&context);
  __builtin_unreachable();
}

}  // namespace

void make_fibers(size_t n, void (*body)()) {
  body_of_fibers = body;
  while (fibers.size() < n) {
    Fiber& fiber = fibers.emplace_back();
    fiber.memory = std::make_unique<char[]>(kStackBytes);
    fiber.stack.bottom = fiber.memory.get();
    fiber.stack.bytes = kStackBytes;
  }
}

void drop_fibers() {
  fibers.clear();
}

PLAIN void run_fiber(size_t fiber) {
  before_jump(outside, fibers[fiber].stack, true);
  if (__builtin_setjmp(outside.place) == 0) go_to(fibers[fiber]);
  after_jump();
}

PLAIN void switch_fiber(size_t from, size_t to) {
  before_jump(fibers[from].stack, fibers[to].stack, true);
  if (__builtin_setjmp(fibers[from].stack.place) == 0) go_to(fibers[to]);
  after_jump();
}

PLAIN void leave_fibers(size_t from) {
  before_jump(fibers[from].stack, outside, true);
  if (__builtin_setjmp(fibers[from].stack.place) == 0) jump(outside);
  after_jump();
}

PLAIN void abandon_fiber() {
  before_jump(*entered, outside, false);
  jump(outside);
}

}  // namespace emulation

// Implements fibers with the compiler's built-in jumps. These save only the position on a stack, so switching
// between fibers is cheap. This makes it possible to have a fiber for each thread of a block.
#include "fibers.h"

#include <ucontext.h>

#include "address_sanitizer.h"

// AddressSanitizer must be told before and after each jump which stack is in use. The functions that jump are
// not instrumented, because AddressSanitizer would think that a jump ends the frames of the stack.
#if ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#define PLAIN __attribute__((noinline, no_sanitize("address")))
#else
#define PLAIN __attribute__((noinline))
#endif

namespace emulation {
namespace {

// The size of a fiber's stack. It is not a power of two, because then the tops of all stacks would share one
// set of the CPU cache.
constexpr size_t kStackBytes = 32 * 1024 + 192;

Fibers* starting = nullptr;  // the fibers of the one that starts

}  // namespace

void Fibers::make(size_t n) {
  while (fibers_.size() < n) {
    Fiber& fiber = fibers_.emplace_back();
    fiber.memory = std::make_unique<char[]>(kStackBytes);
    fiber.stack.bottom = fiber.memory.get();
    fiber.stack.bytes = kStackBytes;
  }
}

void Fibers::before_jump(Stack& from, const Stack& to, bool comes_back) {
  left_ = &from;
#if ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(comes_back ? &from.saved : nullptr, to.bottom, to.bytes);
#else
  (void)to;
  (void)comes_back;
#endif
}

void Fibers::after_jump() {
#if ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(entered_->saved, &left_->bottom, &left_->bytes);
#endif
}

// This is a separate function, because the function that has called __builtin_setjmp() must not call
// __builtin_longjmp().
[[noreturn]] PLAIN void Fibers::jump(Stack& to) {
  entered_ = &to;
  __builtin_longjmp(to.place, 1);
}

// The function that a fiber runs for ever. The same fibers serve all blocks: entering a new stack takes
// system calls, but jumping back to a stack takes none.
void Fibers::enter_fiber() {
  Fibers& fibers = *starting;
  fibers.after_jump();
  for (;;) fibers.body_();
}

[[noreturn]] PLAIN void Fibers::go_to(Fiber& fiber) {
  if (fiber.started) jump(fiber.stack);
  fiber.started = true;
  entered_ = &fiber.stack;
  starting = this;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.memory.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, enter_fiber, 0);
  setcontext(&context);
  __builtin_unreachable();
}

PLAIN void Fibers::run(size_t fiber) {
  before_jump(outside_, fibers_[fiber].stack, true);
  if (__builtin_setjmp(outside_.place) == 0) go_to(fibers_[fiber]);
  after_jump();
}

PLAIN void Fibers::switch_to(size_t from, size_t to) {
  before_jump(fibers_[from].stack, fibers_[to].stack, true);
  if (__builtin_setjmp(fibers_[from].stack.place) == 0) go_to(fibers_[to]);
  after_jump();
}

PLAIN void Fibers::leave(size_t from) {
  before_jump(fibers_[from].stack, outside_, true);
  if (__builtin_setjmp(fibers_[from].stack.place) == 0) jump(outside_);
  after_jump();
}

PLAIN void Fibers::abandon() {
  before_jump(*entered_, outside_, false);
  jump(outside_);
}

}  // namespace emulation

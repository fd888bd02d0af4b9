// A fiber is a stack and the point where its execution continues. One OS thread switches between many fibers without a
// system call (Boost.Context). The address sanitizer is notified of each switch. The function of a fiber never returns.
// An idle fiber waits until the fiber is used again. The destructor of a fiber only returns its stack to the pool. All
// threads share one pool of stacks.
#pragma once

#include <cstddef>

namespace shoal::cuda::emulator {

class Fiber {
 public:
  using Entry = void (*)(Fiber& self, void* argument);

  /// Constructs a fiber that represents the running OS thread, so that other fibers can switch back to this thread.
  Fiber() = default;
  /// The first switch to the fiber calls entry(self, argument). entry must never return.
  Fiber(Entry entry, void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Creates the pool of stacks if it does not exist. Objects that are constructed after this call are destroyed before
  /// the pool.
  static void keep_stacks();

  /// Suspends this fiber, which must be the running fiber, and runs `next`. Returns when another fiber switches back to
  /// this fiber.
  void switch_to(Fiber& next);

 private:
  struct Switch;
  struct Arrival;

  void* context_ = nullptr;
  void* stack_ = nullptr;         // from the pool; nullptr for the thread's own stack
  const void* bottom_ = nullptr;  // stack bounds for the address sanitizer
  size_t size_ = 0;
  void* fake_stack_ = nullptr;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
};

}  // namespace shoal::cuda::emulator

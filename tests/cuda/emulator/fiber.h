// A fiber: a stack and where on it the work goes on. One OS thread switches between many of them without a system call
// (Boost.Context), and the address sanitizer is told of each switch. Fibers never end: they park and are used again, so
// that their stacks can simply be given back. Stacks come from one pool for all threads.
#pragma once

#include <cstddef>

namespace shoal::cuda::emulator {

class Fiber {
 public:
  using Entry = void (*)(Fiber& self, void* argument);

  /// The thread that is running, as something to switch from and back to.
  Fiber() = default;
  /// Runs entry(self, argument) when it is switched to first. entry never returns.
  Fiber(Entry entry, void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Makes the pool of stacks, if it is not there yet: it is gone only after what was made later.
  static void keep_stacks();

  /// Goes on with `next`; returns when something switches back to this one, which must be the one that is running.
  void switch_to(Fiber& next);

 private:
  struct Switch;
  struct Arrival;

  void* context_ = nullptr;
  void* stack_ = nullptr;         // from the pool; nullptr for a thread's own
  const void* bottom_ = nullptr;  // as the sanitizer knows it
  size_t size_ = 0;
  void* fake_stack_ = nullptr;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
};

}  // namespace shoal::cuda::emulator

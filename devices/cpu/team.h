// Team: the threads of one CPU backend, the worker among them. They are an OpenMP parallel region that lasts as long
// as the backend; between plans the others wait, and at each plan all walk its steps together.
//
// Why OpenMP: its runtime makes the threads, places them by the usual environment variables, and is known to tools
// (debuggers, profilers, the thread sanitizer). Why one long region with our own barrier in it: the runtime's
// barriers and idle threads spin for milliseconds while the process has no more threads than cores, so that on a
// machine with other work a team waits whole time slices for a thread that lost its core to a thread that
// only spins (measured on two busy cores: 1000 steps in 1 to 8 s, against 0.05 s with threads that park early).
#pragma once

#include <functional>
#include <span>

#include "devices/cpu/op_kernel.h"
#include "devices/cpu/waiting.h"

namespace shoal::cpu {

/// One node of a plan, ready to run.
struct Step {
  void (*run)(const TeamContext& ctx, Tensor& node) = nullptr;
  Tensor* node = nullptr;
  std::byte* workspace = nullptr;
  bool alone = false;    ///< thread 0 does it: too small to share
  bool barrier = false;  ///< the team meets after it
};

class Team {
 public:
  /// `threads` >= 1, counted for the whole life as threads that compute.
  explicit Team(int threads) : count_(threads), wanted_(threads) {}

  /// Forms the team, calls body on this thread (thread 0 of it), dissolves the team when body returns. body must
  /// not throw.
  void lead(const std::function<void()>& body);
  /// Inside lead(), on its thread: all threads walk the steps. Returns when all are done. Does not allocate.
  void run(std::span<const Step> steps);
  /// Threads in the team; fewer than asked for when the user limits OpenMP.
  int size() const { return size_; }

 private:
  void help(int thread);
  void walk(int thread);

  ThreadCount count_;
  int wanted_;
  int size_ = 1;
  std::span<const Step> steps_;  ///< of the current round; empty = go home. Published by rounds_.
  Counter rounds_;
  TeamBarrier meeting_;
};

}  // namespace shoal::cpu

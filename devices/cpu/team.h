// Team: the threads of one CPU backend, the worker among them. They are an OpenMP parallel region that lasts as long
// as the backend; between plans the others wait, and at each plan all walk its steps together.
//
// Why OpenMP: its runtime makes the threads, limits them by the usual environment variables, and is known to tools
// (debuggers, profilers, the thread sanitizer). Where they run is up to us: by OMP_PROC_BIND the teams of all devices
// would have the same cores. Why one long region with our own barrier in it: the runtime's barriers and idle
// threads spin for milliseconds while the process has no more threads than cores, so that on a machine with other work
// a team waits whole time slices for a thread that lost its core to a thread that only spins (measured on two
// busy cores: 1000 steps in 1 to 8 s, against 0.05 s with threads that park early).
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "devices/backend.h"
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
  /// `threads` >= 1, counted for the whole life as threads that compute. They run on `cores`, empty: wherever the
  /// system likes; where that is not permitted too. `slowdown`: see slowdown.h.
  explicit Team(int threads, std::vector<int> cores = {}, double slowdown = 1)
      : count_(threads), wanted_(threads), cores_(std::move(cores)), slowdown_(slowdown) {}

  /// Forms the team, calls body on this thread (thread 0 of it), dissolves the team when body returns. body must
  /// not throw.
  void lead(const std::function<void()>& body);
  /// Inside lead(), on its thread: the first `threads` threads walk the steps, or all where there are fewer. Returns
  /// when all are done: nullptr, or the node before which the abort callback said to stop (of a device that is slowed
  /// it may be the last one, done already). Does not allocate.
  const Tensor* run(std::span<const Step> steps, int threads);
  /// Asked by thread 0 before each step, and while it waits to be slow; not while steps run.
  void set_abort_callback(AbortCallback callback) { abort_ = std::move(callback); }
  /// Threads in the team; fewer than asked for when the user limits OpenMP.
  int size() const { return size_; }

 private:
  void bind() const;
  void help(int thread);
  void walk(int thread);
  const Tensor* run_steps(std::span<const Step> steps, int threads);
  const Tensor* run_alone(std::span<const Step> steps) const;
  /// Thread 0, before step `index`.
  void ask(int index);

  ThreadCount count_;
  int wanted_;
  std::vector<int> cores_;
  double slowdown_;
  int size_ = 1;
  AbortCallback abort_;
  int asked_at_ = 0;  ///< thread 0: the step before which it was told to stop
  // A round begins with one cache line that goes from thread 0 to the others.
  alignas(kCacheLine) std::span<const Step> steps_;  ///< of the round; empty = go home. Published by rounds_.
  int active_ = 1;                                   ///< threads that walk them
  std::atomic<int> stop_after_{0};                   ///< the step after whose barrier all threads leave
  Counter rounds_;
  /// TeamContext::taken, one for the step between two barriers and one for that behind the next, in turn: thread 0
  /// clears the one that nobody uses.
  struct alignas(kCacheLine) Taken {
    std::atomic<int64_t> count{0};
  };
  std::array<Taken, 2> taken_;
  TeamBarrier meeting_;  ///< of the active threads
  TeamBarrier parting_;  ///< of all
};

}  // namespace shoal::cpu

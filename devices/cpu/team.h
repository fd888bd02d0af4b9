// Team: the threads of one CPU backend, the worker among them. They are an OpenMP parallel region that lasts as long
// as the backend; between plans the others wait, and each plan is done by all together.
//
// Why OpenMP: its runtime makes the threads, limits them by the usual environment variables, and is known to tools
// (debuggers, profilers, the thread sanitizer). Where they run is up to us: by OMP_PROC_BIND the teams of all devices
// would have the same cores. Why one long region: the runtime's idle threads spin for milliseconds while the process
// has no more threads than cores, and keep other programs, or each other, from their cores.
//
// No thread waits for another one to come. A step that is shared is cut into parts that are taken by threads that are
// free (claims.h); the thread that finishes the last part goes on: it does the steps that are not shared, and opens the
// next one that is. So a thread that has lost its core to another program holds up what it is at, and no more; and the
// others can do without it.
//
//   step 1, shared    |part 0|  |part 1|
//   step 2, not                         |======|
//   step 3, shared                              |part 0|  |part 1|
//
// open_ has the number of the step that is open, and how many parts it has; 0 parts: no round is under way. Threads
// that find nothing to do wait for it to move on.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "devices/backend.h"
#include "devices/cpu/claims.h"
#include "devices/cpu/op_kernel.h"
#include "devices/cpu/waiting.h"

namespace shoal::cpu {

/// One node of a plan, or what is prepared for it, ready to run.
struct Step {
  void (*run)(const TeamContext& ctx, Tensor& node) = nullptr;
  Tensor* node = nullptr;
  std::byte* workspace = nullptr;
  bool alone = false;    ///< too small to share: it has one part
  bool follows = false;  ///< TeamContext::follows
};

class Team {
 public:
  /// `threads` >= 1, counted for the whole life as threads that compute. They run on `cores`, empty: wherever the
  /// system likes; where that is not permitted too. `slowdown`: see slowdown.h.
  explicit Team(int threads, std::vector<int> cores = {}, double slowdown = 1)
      : count_(threads), wanted_(threads), cores_(std::move(cores)), slowdown_(slowdown), claims_(threads) {}

  /// Forms the team, calls body on this thread (thread 0 of it), dissolves the team when body returns. body must
  /// not throw.
  void lead(const std::function<void()>& body);
  /// Inside lead(), on its thread: runs the steps, shared ones in `threads` parts or as many as there are threads where
  /// these are fewer. Returns when all are done: nullptr, or the node before which the abort callback said to stop (of
  /// a device that is slowed it may be the last one, done already). Does not allocate.
  const Tensor* run(std::span<const Step> steps, int threads);
  /// Asked before each step, by one thread at a time, and while the device waits to be slow; not while steps run.
  void set_abort_callback(AbortCallback callback) { abort_ = std::move(callback); }
  /// Threads in the team; fewer than asked for when the user limits OpenMP.
  int size() const { return size_; }

 private:
  void bind() const;
  void help(int thread);
  const Tensor* run_steps(std::span<const Step> steps, int threads);
  const Tensor* run_alone(std::span<const Step> steps) const;
  void take_parts(int thread, uint64_t open);
  void go_on(size_t index);
  void wait(uint64_t open, uint64_t last, uint64_t& naps) const;

  ThreadCount count_;
  int wanted_;
  std::vector<int> cores_;
  double slowdown_;
  int size_ = 1;
  AbortCallback abort_;
  // Of the round. Written by one thread at a time, between the end of a step and the opening of the next; read by those
  // who have claimed a part of the open step.
  std::span<const Step> steps_;
  int parts_ = 1;
  size_t index_ = 0;                 ///< of the open step
  const Tensor* stopped_ = nullptr;  ///< the node before which the abort callback said to stop
  uint64_t number_ = 0;              ///< of the open step, or of the end of the round
  uint64_t last_ = 0;                ///< number of the end of the round
  Claims claims_;
  alignas(kCacheLine) std::atomic<int> done_{0};  ///< parts of the open step
  alignas(kCacheLine) Counter open_;              ///< number and parts in one, see opened()
};

}  // namespace shoal::cpu

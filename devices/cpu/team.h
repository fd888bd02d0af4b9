// Team: the threads of one CPU backend, including the worker. They form an OpenMP parallel region that lasts as long as
// the backend. All threads run each plan together; between plans, all threads except the worker wait.
//
// The team uses OpenMP because its runtime creates the threads, limits them by the usual environment variables, and is
// known to debuggers, profilers and the thread sanitizer. The team binds its threads to cores itself, because
// OMP_PROC_BIND would place the teams of all devices on the same cores. There is one long region because idle threads
// of the runtime spin for milliseconds, unless the process has more threads than cores. Spinning threads would keep
// other programs, or each other, from their cores.
//
// No thread waits for another thread to arrive. Free threads take the parts of a shared step (claims.h). The thread
// that finishes the last part continues: it runs the following unshared steps and opens the next shared step. So a
// thread that has lost its core to another program delays only its current piece, and the other threads do the rest.
//
//   step 1, shared    |part 0|  |part 1|
//   step 2, alone                       |======|
//   step 3, shared                              |part 0|  |part 1|
//
// open_ contains the number of the open step and its number of parts. 0 parts mean that no round is running. Idle
// threads wait for open_ to change.
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

/// A node of a plan, or the preparation of a node, that is ready to run.
struct Step {
  void (*run)(const TeamContext& ctx, Tensor& node) = nullptr;
  Tensor* node = nullptr;
  std::byte* workspace = nullptr;
  bool alone = false;    ///< whether it has one part because it is too small to share
  bool follows = false;  ///< TeamContext::follows
};

class Team {
 public:
  /// `threads` is at least 1. The threads count as computing threads while the team exists. They are bound to `cores`;
  /// if `cores` is empty or binding is not permitted, the system places them. For `slowdown` see slowdown.h.
  explicit Team(int threads, std::vector<int> cores = {}, double slowdown = 1)
      : count_(threads), wanted_(threads), cores_(std::move(cores)), slowdown_(slowdown), claims_(threads) {}

  /// Forms the team, calls `body` on this thread (thread 0 of the team), and dissolves the team when `body` returns.
  /// `body` must not throw.
  void lead(const std::function<void()>& body);
  /// Runs the steps. Must be called inside lead(), on its thread. A shared step has `threads` parts, at most one per
  /// thread of the team. Returns nullptr when all steps are done. If the abort callback stopped the run, returns the
  /// first node that did not run; on a slowed device this may be the last node, although it did run. Does not allocate.
  const Tensor* run(std::span<const Step> steps, int threads);
  /// One thread at a time calls the callback before each step, and while a slowed device waits. Must not be set while
  /// steps run.
  void set_abort_callback(AbortCallback callback) { abort_ = std::move(callback); }
  /// Number of threads in the team. It is lower than requested if the user limits OpenMP.
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
  // State of the round. One thread at a time writes it, between the end of a step and the opening of the next step.
  // Threads that have claimed a part of the open step read it.
  std::span<const Step> steps_;
  int parts_ = 1;
  size_t index_ = 0;                 ///< index of the open step
  const Tensor* stopped_ = nullptr;  ///< the node before which the abort callback stopped the round
  uint64_t number_ = 0;              ///< number of the open step, or of the end of the round
  uint64_t last_ = 0;                ///< number of the end of the round
  Claims claims_;
  alignas(kCacheLine) std::atomic<int> done_{0};  ///< number of finished parts of the open step
  alignas(kCacheLine) Counter open_;              ///< number of the open step and its parts in one word, see opened()
};

}  // namespace shoal::cpu

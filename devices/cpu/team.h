// A Team consists of the threads of one CPU backend, including the thread of its Worker (worker.h). These threads form
// an OpenMP parallel region that lasts as long as the backend. All threads run each plan together. Between plans, all
// threads except the worker's thread wait.
//
// The team uses OpenMP for three reasons. The OpenMP runtime creates the threads. The usual environment variables can
// limit the number of threads. Debuggers, profilers and the thread sanitizer support OpenMP. The team itself binds its
// threads to cores, because OMP_PROC_BIND would place the teams of all devices on the same cores. The team uses one
// long region instead of many short regions. If a process has at most as many threads as cores, idle threads of the
// runtime spin for milliseconds after each short region. These threads would keep other threads and programs from using
// the cores.
//
// No thread waits until another thread begins a step. Free threads claim the parts of a shared step (claims.h). The
// thread that finishes the last part runs the following unshared steps and opens the next shared step. So a thread that
// has lost its core to another program delays only the part that it runs. If a kernel divides its parts into pieces
// (claims.h), the thread delays only one piece. The other threads run the remaining parts and pieces.
//
//   step 1, shared    |part 0|  |part 1|
//   step 2, alone                       |======|
//   step 3, shared                              |part 0|  |part 1|
//
// A round is one call of run(). open_ contains the number of the open step and the count of the step's parts. If this
// count is 0, no round is running. Idle threads wait until open_ changes.
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

/// A node of a plan, or the preparation of a node. A Step contains all data that it needs to run.
struct Step {
  void (*run)(const TeamContext& ctx, Tensor& node) = nullptr;
  Tensor* node = nullptr;
  std::byte* workspace = nullptr;
  bool alone = false;    ///< whether the step has one part because it is too small to share
  bool follows = false;  ///< value for TeamContext::follows
};

class Team {
 public:
  /// `threads` is at least 1. While the team exists, may_spin() (waiting.h) counts its threads as computing threads.
  /// The threads are bound to `cores`. If `cores` is empty or binding is not permitted, the operating system places the
  /// threads. slowdown.h describes `slowdown`.
  explicit Team(int threads, std::vector<int> cores = {}, double slowdown = 1)
      : count_(threads), wanted_(threads), cores_(std::move(cores)), slowdown_(slowdown), claims_(threads) {}

  /// Forms the team and calls `body` on the calling thread, which is thread 0 of the team. Dissolves the team when
  /// `body` returns. `body` must not throw.
  void lead(const std::function<void()>& body);
  /// Runs the steps. Only the thread that called lead() may call this function, from inside `body`. A shared step has
  /// `threads` parts, or fewer parts if the team has fewer threads. Returns nullptr when all steps are done. If the
  /// abort callback stopped the run, returns the first node that did not run. On a slowed device, the function may also
  /// return the last node although this node did run. Does not allocate.
  const Tensor* run(std::span<const Step> steps, int threads);
  /// The team calls the callback before each step, and also while a slowed device waits. Only one thread at a time
  /// calls the callback. The callback must not be set while steps run.
  void set_abort_callback(AbortCallback callback) { abort_ = std::move(callback); }
  /// Number of threads in the team. This number is less than requested if the user limits the threads of OpenMP.
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
  // State of the round. After the end of a step, one thread writes this state and then opens the next step. Threads
  // that have claimed a part of the open step read the state.
  std::span<const Step> steps_;
  int parts_ = 1;
  size_t index_ = 0;                 ///< index of the open step
  const Tensor* stopped_ = nullptr;  ///< the node before which the abort callback stopped the round
  uint64_t number_ = 0;              ///< number of the open step, or number that marks the end of the round
  uint64_t last_ = 0;                ///< number that marks the end of the round
  Claims claims_;
  alignas(kCacheLine) std::atomic<int> done_{0};  ///< number of finished parts of the open step
  alignas(kCacheLine) Counter open_;              ///< number of the open step and count of the step's parts, packed
                                                  ///< into one word; see opened()
};

}  // namespace shoal::cpu

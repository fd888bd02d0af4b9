#include "devices/cpu/team.h"

#include <omp.h>

#include <algorithm>

#include "devices/cpu/cpu_device.h"
#include "devices/cpu/slowdown.h"
#include "devices/cpu/topology.h"

namespace shoal::cpu {
namespace {

// Team::open_ is one word that contains the number of the open step and the count of the step's parts.
constexpr int kPartBits = 16;
constexpr uint64_t kDissolve = (1 << kPartBits) - 1;
uint64_t opened(uint64_t number, uint64_t parts) {
  return number << kPartBits | parts;
}
uint64_t number_of(uint64_t open) {
  return open >> kPartBits;
}
int parts_of(uint64_t open) {
  return static_cast<int>(open & kDissolve);
}
static_assert(kMaxThreads < static_cast<int>(kDissolve));

/// After its own part, a thread waits for this time before it claims parts of other threads. On a machine without other
/// load, the other threads begin their own parts during this wait.
constexpr std::chrono::microseconds kPatience{1};
/// Time that a thread spins before it parks, if other threads have not finished their parts. This time is shorter than
/// kSpinTime, for which threads spin between rounds while the host works. On a machine without other load, all threads
/// finish a shared step within a few microseconds.
constexpr std::chrono::microseconds kStepSpin{50};
/// Maximum number of steps that a thread skips if it does not get a core in time.
constexpr uint64_t kLongestNap = 256;

}  // namespace

void Team::lead(const std::function<void()>& body) {
  if (wanted_ == 1) {
    bind();
    return body();
  }
  omp_set_dynamic(0);
#pragma omp parallel num_threads(wanted_)
  {
    const int thread = omp_get_thread_num();
    bind();  // every thread binds itself, because OpenMP may have bound it to other cores
    if (thread == 0) {
      size_ = omp_get_num_threads();
      body();
      number_ += kLongestNap + 1;  // a parked thread skips at most kLongestNap steps, so this number wakes every thread
      open_.advance_to(opened(number_, kDissolve));
    } else {
      help(thread);
    }
  }
}

void Team::bind() const {
  if (!cores_.empty()) bind_thread(cores_);
}

const Tensor* Team::run(std::span<const Step> steps, int threads) {
  if (slowdown_ == 1 || steps.empty()) return run_steps(steps, threads);
  const auto begin = std::chrono::steady_clock::now();
  if (const Tensor* stopped = run_steps(steps, threads)) return stopped;
  const bool stop = wait_in_proportion(begin, std::chrono::steady_clock::now(), slowdown_, abort_);
  return stop ? steps.back().node : nullptr;
}

const Tensor* Team::run_steps(std::span<const Step> steps, int threads) {
  const auto shared = std::count_if(steps.begin(), steps.end(), [](const Step& step) { return !step.alone; });
  parts_ = std::min(threads, size_);
  if (shared == 0 || parts_ == 1) return run_alone(steps);
  steps_ = steps;
  stopped_ = nullptr;
  last_ = number_ + static_cast<uint64_t>(shared) + 1;
  const uint64_t last = last_;
  go_on(0);
  for (uint64_t naps = 0;;) {
    const uint64_t open = open_.value();
    if (number_of(open) == last) return stopped_;
    take_parts(0, open);
    wait(open, last, naps);
  }
}

const Tensor* Team::run_alone(std::span<const Step> steps) const {
  for (const Step& step : steps) {
    if (abort_ && abort_()) return step.node;
    step.run({.workspace = step.workspace, .follows = step.follows}, *step.node);
  }
  return nullptr;
}

void Team::help(int thread) {
  for (uint64_t open = 0, naps = 0;;) {
    wait(open, UINT64_MAX, naps);
    open = open_.value();
    if (parts_of(open) == static_cast<int>(kDissolve)) return;
    take_parts(thread, open);
  }
}

/// Runs available parts of the open step. `open` is the value of open_.
void Team::take_parts(int thread, uint64_t open) {
  const int parts = parts_of(open);
  const uint64_t number = number_of(open);
  bool waited = false;
  for (int i = 0; i < parts; ++i) {
    const int part = (thread + i) % parts;
    if (part != thread && !std::exchange(waited, true) && open_.spin_for(open + 1, Waiter::kWorker, kPatience)) return;
    if (!claims_.claim(part, number)) continue;
    const Step& step = steps_[index_];
    step.run({part, parts, step.workspace, step.follows, &claims_, number}, *step.node);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == parts) return go_on(index_ + 1);
  }
}

/// A thread calls this function when it begins a round or has finished the last part of a step. The function runs
/// unshared steps, beginning with `index`. Then it opens the next shared step or ends the round.
void Team::go_on(size_t index) {
  done_.store(0, std::memory_order_relaxed);
  for (; index < steps_.size() && stopped_ == nullptr; ++index) {
    const Step& step = steps_[index];
    if (abort_ && abort_()) {
      stopped_ = step.node;
    } else if (step.alone) {
      step.run({.workspace = step.workspace, .follows = step.follows}, *step.node);
    } else {
      index_ = index;
      ++number_;
      return open_.advance_to(opened(number_, static_cast<uint64_t>(parts_)));
    }
  }
  number_ = last_;
  open_.advance_to(opened(last_, 0));
}

/// Returns when a later step is open or when the round ends. `last` is the number that marks the end of the round. The
/// thread spins, then parks. A thread parks during a round for one of two reasons. Either it waits for a thread that
/// has lost its core, or it shares its own core with another thread. In both cases, the parking thread skips steps, and
/// other threads run these steps. The number of skipped steps doubles each time that the thread parks, until a step
/// opens while the thread spins.
void Team::wait(uint64_t open, uint64_t last, uint64_t& naps) const {
  const uint64_t number = number_of(open);
  const bool in_round = parts_of(open) > 0;
  if (open_.spin_for(opened(number + 1, 0), Waiter::kWorker, in_round ? kStepSpin : kSpinTime)) {
    naps = 0;
    return;
  }
  uint64_t steps = 1;
  if (in_round) {
    steps = uint64_t{1} << naps;
    if (steps < kLongestNap) ++naps;
  }
  open_.park(opened(std::min(number + steps, last), 0));
}

}  // namespace shoal::cpu

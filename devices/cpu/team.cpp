#include "devices/cpu/team.h"

#include <omp.h>

#include <algorithm>
#include <limits>

#include "devices/cpu/slowdown.h"
#include "devices/cpu/topology.h"

namespace shoal::cpu {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();

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
    bind();  // each by itself: OpenMP may have bound it elsewhere
    if (thread == 0) {
      size_ = omp_get_num_threads();
      body();
      steps_ = {};
      rounds_.advance_to(rounds_.value() + 1);
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
  active_ = std::min(threads, size_);
  const bool alone = std::all_of(steps.begin(), steps.end(), [](const Step& step) { return step.alone; });
  if (alone || active_ == 1) return run_alone(steps);
  steps_ = steps;
  stop_after_ = kNever;
  for (Taken& taken : taken_) taken.count.store(0, std::memory_order_relaxed);
  rounds_.advance_to(rounds_.value() + 1);
  walk(0);
  return stop_after_ == kNever ? nullptr : steps[static_cast<size_t>(asked_at_)].node;
}

const Tensor* Team::run_alone(std::span<const Step> steps) const {
  for (const Step& step : steps) {
    if (abort_ && abort_()) return step.node;
    step.run({0, 1, step.workspace, nullptr}, *step.node);
  }
  return nullptr;
}

void Team::help(int thread) {
  for (uint64_t round = 1;; ++round) {
    rounds_.wait_for(round, Waiter::kWorker);
    if (steps_.empty()) return;
    walk(thread);
  }
}

// All threads must leave at the same step: the next one with a barrier, which orders what thread 0 has decided.
void Team::ask(int index) {
  if (stop_after_ != kNever || !abort_()) return;
  asked_at_ = index;
  const int count = static_cast<int>(steps_.size());
  int last = index;
  while (last < count && !steps_[static_cast<size_t>(last)].barrier) ++last;
  stop_after_ = last;
}

void Team::walk(int thread) {
  const int count = thread < active_ ? static_cast<int>(steps_.size()) : 0;
  size_t phase = 0;
  for (int i = 0; i < count; ++i) {
    const Step& step = steps_[static_cast<size_t>(i)];
    if (thread == 0 && abort_) ask(i);
    if (!step.alone) {
      step.run({thread, active_, step.workspace, &meeting_, &taken_[phase % 2].count}, *step.node);
    } else if (thread == 0 && stop_after_ == kNever) {
      step.run({0, 1, step.workspace, nullptr}, *step.node);
    }
    if (!step.barrier) continue;
    meeting_.meet(active_);
    ++phase;
    if (thread == 0) taken_[(phase + 1) % 2].count.store(0, std::memory_order_relaxed);
    if (stop_after_.load(std::memory_order_relaxed) <= i) break;
  }
  parting_.meet(size_);  // nobody looks at the steps after this
}

}  // namespace shoal::cpu

#include "devices/cpu/team.h"

#include <omp.h>

#include <algorithm>

namespace shoal::cpu {

void Team::lead(const std::function<void()>& body) {
  if (wanted_ == 1) return body();
  omp_set_dynamic(0);
#pragma omp parallel num_threads(wanted_)
  {
    const int thread = omp_get_thread_num();
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

void Team::run(std::span<const Step> steps) {
  const bool alone = std::all_of(steps.begin(), steps.end(), [](const Step& step) { return step.alone; });
  if (alone || size_ == 1) {
    for (const Step& step : steps) step.run({0, 1, step.workspace, nullptr}, *step.node);
    return;
  }
  steps_ = steps;
  rounds_.advance_to(rounds_.value() + 1);
  walk(0);
}

void Team::help(int thread) {
  for (uint64_t round = 1;; ++round) {
    rounds_.wait_for(round, Waiter::kWorker);
    if (steps_.empty()) return;
    walk(thread);
  }
}

void Team::walk(int thread) {
  for (const Step& step : steps_) {
    if (!step.alone) {
      step.run({thread, size_, step.workspace, &meeting_}, *step.node);
    } else if (thread == 0) {
      step.run({0, 1, step.workspace, nullptr}, *step.node);
    }
    if (step.barrier) meeting_.meet(size_);
  }
  meeting_.meet(size_);  // nobody looks at the steps after this
}

}  // namespace shoal::cpu

#include "tuning/estimate_fluid.h"

#include <algorithm>
#include <limits>

namespace shoal::tuning {
namespace {

/// The progress of a flow.
struct Runner {
  Flow* flow = nullptr;
  size_t next = 0;     ///< index of the current work item
  double left = 1;     ///< unfinished fraction of the current work item
  double seconds = 0;  ///< seconds that the whole work item takes at the current rate
  double demand = 0;   ///< bytes/s that the flow would read with unlimited bandwidth
  bool is_served = false;

  const Work& work() const { return flow->work[next]; }
  double weight() const { return flow->bandwidth > 0 ? flow->bandwidth : demand; }
};

class Pool {
 public:
  Pool(const machine::Domain& domain, std::span<Flow> flows) : domain_(domain) {
    for (Flow& flow : flows) {
      Runner runner;
      runner.flow = &flow;
      if (skip(runner)) runners_.push_back(runner);
    }
  }

  void run() {
    while (!runners_.empty()) {
      set_pace();
      double step = std::numeric_limits<double>::infinity();
      for (const Runner& runner : runners_) step = std::min(step, runner.left * runner.seconds);
      now_ += step;
      std::erase_if(runners_, [&](Runner& runner) { return !advance(runner, step); });
    }
  }

 private:
  /// Skips work items that take no time. Returns false if no work remains.
  bool skip(Runner& runner) const {
    while (runner.next < runner.flow->work.size() && runner.work().seconds <= 0) {
      runner.flow->ends[runner.next++] = now_;
    }
    return runner.next < runner.flow->work.size();
  }

  bool advance(Runner& runner, double step) const {
    // If at most this fraction of a work item is left, the work item counts as finished. With this tolerance, equal
    // ranks finish at the same time despite rounding.
    constexpr double kDone = 1e-12;
    runner.left -= step / runner.seconds;
    if (runner.left > kDone) return true;
    runner.flow->ends[runner.next++] = now_;
    runner.left = 1;
    return skip(runner);
  }

  void set_pace() {
    double cores = 0, demand = 0;
    for (const Runner& runner : runners_) cores += runner.flow->cores;
    const double part = domain_.cores > 0 && cores > domain_.cores ? domain_.cores / cores : 1;
    for (Runner& runner : runners_) {
      runner.seconds = runner.work().seconds / part;
      runner.demand = runner.work().bytes / runner.seconds;
      demand += runner.demand;
    }
    if (domain_.bandwidth > 0 && demand > domain_.bandwidth) share_bandwidth();
  }

  /// Divides the bandwidth of the domain among the flows in proportion to their weights. A flow that demands less than
  /// its part gets its whole demand. The remaining flows divide the remaining bandwidth in the same manner, until every
  /// remaining flow demands more than it gets.
  void share_bandwidth() {
    constexpr double kLeast = 1e-9;  // keeps the divided bandwidth positive despite rounding
    double rest = domain_.bandwidth;
    for (Runner& runner : runners_) runner.is_served = runner.demand <= 0;
    for (bool changed = true; changed;) {
      double weights = 0;
      for (const Runner& runner : runners_) weights += runner.is_served ? 0 : runner.weight();
      const double share = std::max(rest, domain_.bandwidth * kLeast) / weights;
      changed = false;
      for (Runner& runner : runners_) {
        if (runner.is_served || runner.demand > runner.weight() * share) continue;
        runner.is_served = changed = true;
        rest -= runner.demand;
      }
      if (changed) continue;
      for (Runner& runner : runners_) {
        if (!runner.is_served) runner.seconds = runner.work().bytes / (runner.weight() * share);
      }
    }
  }

  const machine::Domain& domain_;
  std::vector<Runner> runners_;
  double now_ = 0;
};

}  // namespace

void run_flows(const machine::Domain& domain, std::span<Flow> flows) {
  Pool(domain, flows).run();
}

}  // namespace shoal::tuning

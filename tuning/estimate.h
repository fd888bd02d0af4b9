// Estimates the time of a plan on a machine. Pure functions.
//
// The steps of the plan run in virtual time. Between two collectives, each rank has its own clock. Each op advances the
// clock of its rank by the cost of the op. If ranks of one domain compute at the same time, they share the domain's
// bandwidth and cores. When one of these ranks finishes, the other ranks get its bandwidth and cores. A collective
// begins when the last rank arrives.
//
// If the experts are divided among the ranks, each rank first computes the products of the average number of selected
// experts. All ranks then wait for the busiest rank, which has the most selected experts (machine/expert_load.h).
//
//   rank 0  |== compute 40 us ==|........|= all_reduce 5 us =|
//   rank 1  |====== compute 60 us =======|= all_reduce 5 us =|      waiting: rank 0 20 us, rank 1 0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "machine/machine.h"
#include "meta/plan/plan.h"

namespace shoal::tuning {

/// The time of one rank in seconds, by activity. The sum of the activities equals Estimate::seconds, because a rank
/// that finishes early waits.
struct RankTime {
  double compute = 0;
  double communication = 0;  ///< time in collectives after the arrival of the last rank
  double waiting = 0;        ///< time until the slower ranks arrive at a collective
};

/// Collectives of the same kind and size.
struct CollectiveTime {
  Collective kind = Collective::kAllReduce;
  int64_t bytes = 0;  ///< size of the full tensor of one collective
  int64_t count = 0;
  double seconds = 0;  ///< seconds of one collective
};

struct Estimate {
  double seconds = 0;  ///< time until the last rank finishes
  std::vector<RankTime> ranks;
  std::vector<CollectiveTime> collectives;  ///< in order of their first occurrence in the plan
};

/// Estimates ranges of segments of one plan. The constructor computes the costs that all ranges share. The plan and the
/// machine must outlive the estimator.
class Estimator {
 public:
  /// `devices`: index of each rank's device in the machine. `kv_rows`: average number of KV cache rows that a query
  /// reads; 0: all rows. A plan contains caches for the full context, but a query reads only the filled rows. Throws
  /// InvalidArgument if the number of devices differs from the number of ranks, or if the machine has no product
  /// measurements for a dtype of the plan.
  Estimator(const meta::Plan& plan, const machine::MachineModel& machine, std::span<const int> devices, double kv_rows);
  ~Estimator();
  Estimator(Estimator&&) noexcept;

  /// The time of segments [first, last). Throws InvalidArgument if the plan does not have these segments.
  Estimate segments(int first, int last) const;

 private:
  struct Ground;
  class Walk;
  std::unique_ptr<const Ground> ground_;
};

}  // namespace shoal::tuning

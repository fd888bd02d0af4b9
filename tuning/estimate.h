// Estimates the time of a plan on a machine. The steps of the plan run in virtual time, with a clock for each rank. A
// compute step advances the clock by the costs of its ops. Ranks of one domain that compute at the same time share its
// bandwidth and cores. When a rank is done, the remaining ranks share its part. A collective begins when the last rank
// has reached it. Pure functions.
//
// If the experts are divided among the ranks, each rank computes the average number of its experts that a token
// selects. All ranks then wait for the busiest rank, which has the most selected experts (machine/expert_load.h).
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

/// The time of one rank in seconds, by activity. The sum equals Estimate::seconds, because ranks that finish early
/// wait.
struct RankTime {
  double compute = 0;
  double communication = 0;  ///< time in collectives after the last rank has arrived
  double waiting = 0;        ///< time until slower ranks arrive
};

/// Collectives of the same kind and size.
struct CollectiveTime {
  Collective kind = Collective::kAllReduce;
  int64_t bytes = 0;  ///< bytes of the full tensor of one collective
  int64_t count = 0;
  double seconds = 0;  ///< seconds of one collective
};

struct Estimate {
  double seconds = 0;  ///< time until the last rank is done
  std::vector<RankTime> ranks;
  std::vector<CollectiveTime> collectives;  ///< in order of first use
};

/// Estimates parts of one plan. The costs that all parts share are computed once. The plan and the machine must outlive
/// the estimator.
class Estimator {
 public:
  /// `devices`: for each rank, the index of its device in the machine. `kv_rows`: rows of the KV cache that a query
  /// reads on average; 0: all rows. Caches are planned for the full context, but only their filled rows are read.
  /// Throws InvalidArgument if the number of devices is not the number of ranks, or if the machine has no product
  /// figures for a dtype of the plan.
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

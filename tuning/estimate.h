// How long a plan takes on a machine: its steps in virtual time. Every rank has a clock. A compute step moves it on by
// the costs of its ops; ranks of one domain that compute at the same time share its bandwidth and cores, and a rank
// that is done leaves them to the others. A collective begins when the last rank has come to it. Pure functions.
//
// Where each rank has some of the experts, it is busy for as many as a token takes of them on the average, and all wait
// for the one that luck has given most (machine/expert_load.h).
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

/// What one rank spends its time with, seconds. All of it is Estimate::seconds: a rank that is done early waits.
struct RankTime {
  double compute = 0;
  double communication = 0;  ///< in collectives, from the moment when all have come
  double waiting = 0;        ///< for other ranks
};

/// Collectives that are alike.
struct CollectiveTime {
  Collective kind = Collective::kAllReduce;
  int64_t bytes = 0;  ///< of one, the full tensor
  int64_t count = 0;
  double seconds = 0;  ///< of one
};

struct Estimate {
  double seconds = 0;  ///< until the last rank is done
  std::vector<RankTime> ranks;
  std::vector<CollectiveTime> collectives;  ///< in order of first use
};

/// Estimates parts of one plan: what they have in common is found out once. Plan and machine must outlive it.
class Estimator {
 public:
  /// `devices`: the machine's device of each rank. `kv_rows`: of the KV cache that a query sees on the average, because
  /// caches are planned for the full context and read as far as they are filled; 0: all of them. Throws InvalidArgument
  /// when devices are not as many as ranks, or when the machine knows no product of a dtype that the plan has.
  Estimator(const meta::Plan& plan, const machine::MachineModel& machine, std::span<const int> devices, double kv_rows);
  ~Estimator();
  Estimator(Estimator&&) noexcept;

  /// Steps of segments [first, last). Throws InvalidArgument for segments that the plan does not have.
  Estimate segments(int first, int last) const;

 private:
  struct Ground;
  class Walk;
  std::unique_ptr<const Ground> ground_;
};

}  // namespace shoal::tuning

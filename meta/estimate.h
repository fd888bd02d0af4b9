// How long a plan takes on a machine: its steps in virtual time. Every rank has a clock. A compute step moves it on by
// the costs of its ops; ranks of one domain that compute at the same time share its bandwidth and cores, and whoever
// is done leaves them to the others. A collective begins when the last rank has come to it. Pure functions.
//
//   rank 0  |== compute 40 us ==|........|= all_reduce 5 us =|
//   rank 1  |====== compute 60 us =======|= all_reduce 5 us =|      waiting: rank 0 20 us, rank 1 0
#pragma once

#include <string>
#include <vector>

#include "devices/trace.h"
#include "meta/machine.h"
#include "meta/plan.h"

namespace shoal::meta {

struct EstimateOptions {
  /// Rows of the KV cache that a query sees on the average: caches are planned for the full context, and read as far as
  /// they are filled.
  double kv_rows = 0;
  bool events = false;  ///< also list what every rank does when
};

/// What one rank spends its time with, seconds.
struct RankTime {
  double compute = 0;
  double communication = 0;  ///< in collectives, from the moment when all have come
  double waiting = 0;        ///< for other ranks
  double total() const { return compute + communication + waiting; }
};

/// Collectives that are alike.
struct CollectiveTime {
  Op kind = Op::kAllReduce;
  int64_t bytes = 0;  ///< of one, the full tensor
  int count = 0;
  double seconds = 0;  ///< of one
};

struct Estimate {
  double seconds = 0;  ///< from the first rank's begin to the last one's end
  std::vector<RankTime> ranks;
  std::vector<CollectiveTime> collectives;  ///< in order of first use
  std::vector<TraceEvent> events;           ///< rows are the names of devices; ns from the begin

  /// Part of the time, averaged over ranks, in which they wait for each other: 0 where all are equally busy.
  double imbalance() const;
  double communication() const;  ///< seconds of all collectives together
};

/// Seconds of a node of a local graph on a device that has the domain to itself, and the bytes of memory that it
/// reads meanwhile. `in_cache`: weights are read from the caches.
struct NodeCost {
  double seconds = 0;
  double bytes = 0;
};
NodeCost node_cost(const DeviceModel& device, const Tensor& node, double kv_rows, bool in_cache);

/// Steps of segments [first_segment, last_segment) of the plan; `devices`: the machine's device of each rank. Throws
/// InvalidArgument when the machine knows no product of a dtype that the plan has.
Estimate estimate(const Plan& plan, int first_segment, int last_segment, const MachineModel& machine,
                  std::span<const int> devices, const EstimateOptions& options);

}  // namespace shoal::meta

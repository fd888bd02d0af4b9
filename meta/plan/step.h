// A step of a plan: a range of nodes of every rank's local graph, or one collective among the ranks. Plain data.
#pragma once

#include <string>
#include <vector>

#include "graph/memory_plan.h"

namespace shoal::meta {

enum class StepKind : uint8_t { kCompute, kCollective };

struct Step {
  StepKind kind = StepKind::kCompute;
  /// Per rank: nodes of its local graph. A collective is one node, among those that are done with it (joined_norm.h).
  std::vector<NodeRange> ranges;
  Collective collective = Collective::kAllReduce;  ///< kCollective only
  std::string tensor;                              ///< the global tensor it is for
  DType dtype = DType::kF32;
  int64_t bytes = 0;  ///< size of the full tensor that is reduced or gathered
};

}  // namespace shoal::meta

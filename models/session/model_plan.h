// What running a model on some devices would take, computed without loading or allocating anything: the plans of a
// step of generation and of prompt batches, and each device's memory: the most that a Session on the same placement
// holds, to the byte, as long as one output is asked for at a time.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "meta/plan/plan.h"
#include "models/place/placement.h"
#include "models/session/loader.h"
#include "models/session/session.h"

namespace shoal::models {

struct DeviceUse {
  std::string device;
  meta::MemoryUse use;
  DeviceMemory memory;   ///< live figures of the device
  size_t mapped = 0;     ///< bytes of weights that are used where the file is mapped, and allocated nowhere
  bool on_host = false;  ///< a CPU device: everything else that runs takes from the same memory

  /// Bytes that it takes to run in memory: what is allocated, and the mapped weights.
  size_t needed() const { return use.total() + mapped; }
  /// The memory has no room for the mapped weights: they are read from the disk for every token.
  bool reads_disk() const { return mapped > 0 && needed() > memory.free; }
};

/// A graph as the scheduler would run it.
struct PlannedGraph {
  BatchShape shape;  ///< without candidates, which the session's options say
  DecoderGraph graph;
  sched::Schedule schedule;
  sched::LocalGraphs local;
  std::vector<std::optional<meta::Plan>> plans;  ///< one for each device of the placement that has something to do
  const meta::Plan& on(int device = 0) const { return *plans[static_cast<size_t>(device)]; }
};

/// A Session can be made from it, and then runs these very graphs.
struct ModelPlan {
  /// Throws InvalidArgument for options that do not fit the model. `most_prompts`: limit of graphs for prompts, the
  /// largest first. The largest graph needs the most memory, but a host may compute smaller batches only.
  ModelPlan(const Model& model, const Placement& placement, const SessionOptions& options, const LoadOptions& load = {},
            size_t most_prompts = std::numeric_limits<size_t>::max());
  /// Tells the placement's meta devices of the plan's shards, before weights are loaded there: else its graphs are
  /// planned again when a Session is made from it.
  void announce(const Model& model, const Placement& placement) const;

  LoadOptions load;  ///< how weights are loaded for it
  SessionSize size;
  KvCache cache;
  std::vector<meta::ShardStore> stores;  ///< one for each device of the placement
  PlannedGraph step;                     ///< one token
  std::vector<PlannedGraph> prompts;     ///< largest_prompt_shapes(), a full batch first; none for a batch of 1
  std::vector<DeviceUse> memory;         ///< one for each simple device
  size_t host_bytes = 0;                 ///< host memory for inputs and what devices pass to each other
};

/// What lies on each device from loading on: weights and caches, without what it takes to compute. No graph is planned.
std::vector<DeviceUse> persistent_use(const Model& model, const Placement& placement, const SessionOptions& options,
                                      const LoadOptions& load);

/// One more graph of the same session: for shapes that are not among the plan's prompts.
PlannedGraph plan_graph(const Model& model, const Placement& placement, const SessionOptions& options,
                        const ModelPlan& plan, BatchShape shape);

/// Is there enough memory for all that is allocated? Then the model runs, if only at the speed of the disk.
bool has_room(std::span<const DeviceUse> uses);
/// Is there enough memory for that and for the mapped weights, too?
bool fits(std::span<const DeviceUse> uses);

}  // namespace shoal::models

// Resources for running a model on some devices: the plans of a generation step and of prompt batches, and the memory
// of each device. Planning loads no weights and allocates no device memory. The stated memory equals, to the byte, the
// maximum memory that a Session on the same placement holds if each evaluate() requests one output.
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
  DeviceMemory memory;   ///< total and currently free memory of the device
  size_t mapped = 0;     ///< bytes of weights that are used in the file's mapping and not allocated
  bool on_host = false;  ///< whether this is a CPU device, which shares its memory with other programs

  /// Bytes that must fit into memory: allocations and mapped weights.
  size_t needed() const { return use.total() + mapped; }
  /// Whether allocations and mapped weights together exceed the free memory. If so, every token reads mapped weights
  /// from the disk.
  bool reads_disk() const { return mapped > 0 && needed() > memory.free; }
};

/// A graph with its schedule and its plans.
struct PlannedGraph {
  BatchShape shape;  ///< `candidates` is 0 here; SessionOptions::candidates has the number
  DecoderGraph graph;
  sched::Schedule schedule;
  sched::LocalGraphs local;
  std::vector<std::optional<meta::Plan>> plans;  ///< one per device of the placement; nullopt for a device without
                                                 ///< nodes
  const meta::Plan& on(int device = 0) const { return *plans[static_cast<size_t>(device)]; }
};

/// A Session that receives a ModelPlan runs the graphs of the plan.
struct ModelPlan {
  /// Throws InvalidArgument for options that do not fit the model. Plans at most `most_prompts` prompt graphs, the
  /// largest graphs first. Usually the largest graph needs the most memory. A host whose large batches are offloaded is
  /// an exception, because the host computes only the smaller graphs.
  ModelPlan(const Model& model, const Placement& placement, const SessionOptions& options, const LoadOptions& load = {},
            size_t most_prompts = std::numeric_limits<size_t>::max());
  /// Gives the plan's shards to the meta devices of the placement. Call announce() before load_weights(). Otherwise a
  /// Session that receives this plan has to plan the graphs again.
  void announce(const Model& model, const Placement& placement) const;

  LoadOptions load;  ///< options for loading the weights
  SessionSize size;
  KvCache cache;
  std::vector<meta::ShardStore> stores;  ///< one per device of the placement
  PlannedGraph step;                     ///< graph for one token
  std::vector<PlannedGraph> prompts;     ///< graphs for largest_shapes(), starting with the graph of a full
                                         ///< batch; empty if the batch is 1
  std::vector<DeviceUse> memory;         ///< one per simple device
  size_t host_bytes = 0;                 ///< host memory for inputs and for copies between devices
};

/// Memory of each device for weights and caches, without compute memory. Plans no graph.
std::vector<DeviceUse> persistent_use(const Model& model, const Placement& placement, const SessionOptions& options,
                                      const LoadOptions& load);

/// The largest context for which the caches fit, and the device that limits it.
struct CacheRoom {
  int64_t tokens = 0;
  std::string device;
};
/// All devices hold the same pages, so the device with the fewest pages limits the cache. The limit includes the free
/// memory of the devices. Returns nullopt if the size of the caches does not depend on the context.
std::optional<CacheRoom> cache_room(const Model& model, const Placement& placement, const SessionOptions& options,
                                    const ModelPlan& plan);

/// Plans one more graph of the same session, for a shape that the plan does not contain.
PlannedGraph plan_graph(const Model& model, const Placement& placement, const SessionOptions& options,
                        const ModelPlan& plan, BatchShape shape);

/// Whether there is enough memory for all allocations. If so, the model can run, but possibly reads mapped weights from
/// the disk for every token.
bool has_room(std::span<const DeviceUse> uses);
/// Whether there is enough memory for all allocations and the mapped weights.
bool fits(std::span<const DeviceUse> uses);

}  // namespace shoal::models

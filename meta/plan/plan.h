// Plan: what a graph becomes on a mesh. Plain data: per rank a local graph with local shapes, and one list of
// steps. What is printed is what runs: the meta backend walks `steps` and queues, for each rank, the nodes of
// a Compute step or the rank's side of a Collective. Made by make_plan (propagate -> lower), never changed after.
//
//   step 0  compute     rank 0: nodes 0-11   rank 1: nodes 0-11
//   step 1  all_reduce  blk.0.attn_out  f32 x 256  1.0 KiB
//   step 2  compute     rank 0: nodes 13-25  ...
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/communicator.h"
#include "devices/backend.h"
#include "devices/device.h"
#include "meta/layout/layout.h"
#include "meta/layout/shards.h"
#include "meta/plan/local_builder.h"
#include "meta/plan/propagate.h"

namespace shoal::meta {

/// The shards of a tensor made outside the range (a leaf, or a node of an earlier range); nullptr when unknown.
using ShardLookup = std::function<const Shards*(const Tensor&)>;

/// What plans are made from besides the graph and the devices. Plain data.
struct PlanContext {
  /// Persistent leaves and nodes of earlier ranges must be known to it.
  ShardLookup shards;
  /// How a weight that lives elsewhere and is copied in (Tensor::copied_from) is to lie; without it every rank gets all
  /// of it, as of any other input.
  LeafLayout copied_weights = {};
  RuleLookup rules = rule_text;
  machine::CostModel costs = {};
  /// Of the communicator that the plan will run with: what it holds, and which nodes behind a collective it does with
  /// it. By default nothing.
  collectives::CommunicatorTraits communicator = {};
  /// Outputs, and nodes that are shown at a cut, are made whole on every rank, as the host that reads them may have
  /// only one of them.
  bool results_are_whole = false;
};

/// Bytes on one device. Totals of what is allocated, alignment included.
struct MemoryUse {
  size_t weights = 0;  ///< those that the graph uses, where they are placed or declared in a store
  size_t cache = 0;
  size_t compute = 0;
  size_t communication = 0;
  size_t total() const { return weights + cache + compute + communication; }
};

/// What one rank runs.
struct RankPlan {
  std::unique_ptr<Graph> graph;
  /// Of the local graph: where it is cut, nodes that others read, and late inputs (PlanOptions).
  std::vector<int> cuts = {};
  std::vector<const Tensor*> shown = {};
  std::vector<LateInput> late = {};
  std::unique_ptr<Graph> zeros = {};  ///< the addends of 0 that were left out: Plan::shards refers to them
  std::vector<NodeRange> fused = {};  ///< nodes of collectives that do more than one
  MemoryUse memory = {};
  std::vector<size_t> chunks = {};  ///< sizes of the allocations that memory.compute is made of
};

struct Plan : PreparedPlan {
  uint64_t graph_uid = 0;
  std::string graph_name;
  std::vector<std::string> devices;
  std::vector<RankPlan> ranks;
  std::vector<Step> steps;
  std::vector<int> segments;  ///< first step of each segment; a segment may have no steps
  /// Layout of every leaf and node: leaves in order of first use, then nodes.
  std::vector<std::pair<const Tensor*, Layout>> layouts;
  /// Layout and local tensors of every input and node.
  std::unordered_map<const Tensor*, Shards> shards;

  const Layout& layout(const Tensor& tensor) const;
  bool communicates() const;
  int count(Collective collective) const;  ///< steps of one kind, e.g. kAllReduce
  int64_t collective_bytes() const;
  /// Collectives of what weights alone determine, so that every run repeats them: a weight was cut in a way that an op
  /// or a reshape cannot keep. Indices of steps.
  std::vector<int> repeated() const;
};

/// Plans a graph, or a range of it, on devices. Touches no device memory; freezes the graph. `options.arena` does not
/// count: the memory is that which the plan needs. Throws InvalidArgument when a leaf is not known, DeviceError when a
/// tensor exceeds a device's max_size.
Plan make_plan(const GraphRange& range, const PlanContext& context, std::span<Device* const> devices,
               const PlanOptions& options = {});
/// With the communicator that the devices get by default.
Plan make_plan(Graph& graph, const ShardStore& store, std::span<Device* const> devices);

/// How a rank's local graph is allocated, so that it takes what the plan says.
PlanOptions allocation_options(const RankPlan& rank, ComputeArena* arena = nullptr);

/// Weights and caches of the graph: fills memory.weights and memory.cache of each rank as
/// BufferType::allocate_tensors would allocate them for all the given tensors together. `weights_type`: which type of
/// buffer weights are in, &Device::buffer_type or &Device::weights_type.
std::vector<MemoryUse> persistent_memory(std::span<Tensor* const> tensors, const ShardStore& store,
                                         std::span<Device* const> devices,
                                         BufferType& (Device::*weights_type)() = &Device::buffer_type);

/// Of what the ranks run together: plans that differ in a step, a collective, or the layout of a node have different
/// digests, but for rare accidents. Addresses, memory and names of devices do not count.
uint64_t digest(const Plan& plan);

/// For people: layouts, steps, memory.
std::string to_string(const Plan& plan);
/// Parts of it.
std::string layouts_text(const Plan& plan);
std::string steps_text(const Plan& plan);
/// One rank's local graph, cut into the steps: exactly the nodes that its device runs, with their numbers.
std::string local_text(const Plan& plan, int rank);
/// JSON text with the same content: {"devices": [...], "tensors": [{name, dtype, shape, layout}],
/// "steps": [{kind, ...}], "segments": [first step, ...] where there is more than one, "memory": [{device, weights,
/// cache, compute, communication, total}]}.
std::string to_json(const Plan& plan);

}  // namespace shoal::meta

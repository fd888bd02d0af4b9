// Plan: a graph prepared for a mesh. Plain data: per rank a local graph with local shapes, and one list of steps. The
// printed plan is the plan that runs: the meta backend walks `steps` and queues, for each rank, the nodes of a Compute
// step or the rank's side of a Collective. make_plan creates it (propagate -> lower). It never changes afterwards.
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

/// The shards of a tensor made outside the range (a leaf, or a node of an earlier range); nullptr if unknown.
using ShardLookup = std::function<const Shards*(const Tensor&)>;

/// Inputs of planning apart from the graph and the devices. Plain data.
struct PlanContext {
  /// Must know all persistent leaves and all nodes of earlier ranges.
  ShardLookup shards;
  /// Layout of a weight that is stored elsewhere and copied in (Tensor::copied_from). Without this callback, such a
  /// weight is mirrored, like any other input.
  LeafLayout copied_weights = {};
  RuleLookup rules = rule_text;
  machine::CostModel costs = {};
  /// Traits of the communicator that will run the plan: bytes of its buffers, and the nodes that it can join with a
  /// collective. By default it has no buffers and joins no nodes.
  collectives::CommunicatorTraits communicator = {};
  /// Makes outputs and nodes that are shown at a cut whole on every rank. With several processes, the process that
  /// reads them may have only one rank.
  bool results_are_whole = false;
};

/// Allocated bytes on one device, including alignment.
struct MemoryUse {
  size_t weights = 0;  ///< weights of the graph that are placed or declared in a store
  size_t cache = 0;
  size_t compute = 0;
  size_t communication = 0;
  size_t total() const { return weights + cache + compute + communication; }
};

/// The part of a plan that one rank runs.
struct RankPlan {
  std::unique_ptr<Graph> graph;
  /// The local graph's cuts, the nodes that are read at a cut, and the late inputs (PlanOptions).
  std::vector<int> cuts = {};
  std::vector<const Tensor*> shown = {};
  std::vector<LateInput> late = {};
  std::unique_ptr<Graph> zeros = {};  ///< the pruned zero addends; Plan::shards refers to them
  std::vector<NodeRange> fused = {};  ///< node range of each collective that is joined with other nodes
  MemoryUse memory = {};
  std::vector<size_t> chunks = {};  ///< sizes of the allocations that memory.compute consists of
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
  int count(Collective collective) const;  ///< number of steps of one kind, e.g. kAllReduce
  int64_t collective_bytes() const;
  /// Steps of collectives that depend on weights only, so that every run repeats them. The cause is a split of a weight
  /// that an op or a reshape cannot keep.
  std::vector<int> repeated() const;
};

/// Plans a graph, or a range of it, on devices. Touches no device memory, and freezes the graph. `options.arena` is
/// ignored: the reported memory is the memory that the plan needs. Throws InvalidArgument if a leaf is unknown,
/// DeviceError if a tensor exceeds a device's max_size.
Plan make_plan(const GraphRange& range, const PlanContext& context, std::span<Device* const> devices,
               const PlanOptions& options = {});
/// Plans the whole graph for the default communicator of the devices.
Plan make_plan(Graph& graph, const ShardStore& store, std::span<Device* const> devices);

/// Options for allocating a rank's local graph with exactly the memory that the plan reports.
PlanOptions allocation_options(const RankPlan& rank, ComputeArena* arena = nullptr);

/// Bytes of weights and caches on each rank if BufferType::allocate_tensors allocates all the given tensors together.
/// `weights_type` is the buffer type of weights, &Device::buffer_type or &Device::weights_type.
std::vector<MemoryUse> persistent_memory(std::span<Tensor* const> tensors, const ShardStore& store,
                                         std::span<Device* const> devices,
                                         BufferType& (Device::*weights_type)() = &Device::buffer_type);

/// Plans that differ in a step, a collective, or the layout of a node have different digests, except for rare
/// collisions. Addresses, memory and device names do not affect the digest.
uint64_t digest(const Plan& plan);

/// Readable text: layouts, steps, memory.
std::string to_string(const Plan& plan);
/// The parts of to_string() about layouts and steps.
std::string layouts_text(const Plan& plan);
std::string steps_text(const Plan& plan);
/// One rank's local graph, divided into the steps: exactly the nodes that its device runs, with their numbers.
std::string local_text(const Plan& plan, int rank);
/// JSON text with the same content: {"devices": [...], "tensors": [{name, dtype, shape, layout}], "steps": [{kind,
/// ...}], "segments": [first step, ...] if there are several, "memory": [{device, weights, cache, compute,
/// communication, total}]}.
std::string to_json(const Plan& plan);

}  // namespace shoal::meta

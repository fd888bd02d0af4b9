// Plan: a graph prepared for a mesh. A plan is plain data: one local graph with local shapes for each rank, and one
// list of steps. The printed plan is the plan that runs: the meta backend executes `steps` in order. For each rank,
// this backend queues the nodes of a Compute step or the rank's call of a Collective step. make_plan creates the plan
// (propagate, then lower). Afterwards, the plan never changes.
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
  /// This lookup must know all persistent leaves and all nodes of earlier ranges.
  ShardLookup shards;
  /// Layout of an input into which a weight is copied (Tensor::copied_from). Without this callback, such an input is
  /// mirrored, like any other input.
  LeafLayout copied_weights = {};
  RuleLookup rules = rule_text;
  /// Layouts that the program wants for inputs and nodes; empty: none.
  ConstraintLookup constraints = {};
  machine::CostModel costs = {};
  /// Traits of the communicator that will run the plan: bytes of its buffers, and the nodes that it can join with a
  /// collective. By default, the communicator has no buffers and joins no nodes.
  collectives::CommunicatorTraits communicator = {};
  /// Whether outputs and nodes in PlanOptions::shown are mirrored. Several processes require mirrored results, because
  /// the process that reads a result may have only one rank.
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
  /// Constraints and reshard nodes, with the conversions that they cause.
  std::vector<ConstrainedTensor> constraints;
  /// Layout and local tensors of every input and node.
  std::unordered_map<const Tensor*, Shards> shards;

  const Layout& layout(const Tensor& tensor) const;
  bool communicates() const;
  int count(Collective collective) const;  ///< number of steps with this collective
  int64_t collective_bytes() const;
  /// Steps of collectives whose sources depend only on weights. Every run repeats these steps with the same result. The
  /// cause of such a step is an op, such as a reshape, that cannot keep the split of a weight.
  std::vector<int> repeated() const;
};

/// Makes a plan of a graph, or of a range of a graph, for the devices. Uses no device memory. Freezes the graph.
/// `options.arena` is ignored: the reported memory is the memory that the plan needs. Throws InvalidArgument if a leaf
/// is unknown, or a constraint is impossible (constraints.h), and DeviceError if a tensor exceeds a device's max_size.
Plan make_plan(const GraphRange& range, const PlanContext& context, std::span<Device* const> devices,
               const PlanOptions& options = {});
/// Plans the whole graph for the default communicator of the devices.
Plan make_plan(Graph& graph, const ShardStore& store, std::span<Device* const> devices);

/// Options for allocating a rank's local graph with exactly the memory that the plan reports.
PlanOptions allocation_options(const RankPlan& rank, ComputeArena* arena = nullptr);

/// Number of bytes of weights and caches on each rank if BufferType::allocate_tensors allocates all the given tensors
/// together. `weights_type` is the buffer type of weights, &Device::buffer_type or &Device::weights_type.
std::vector<MemoryUse> persistent_memory(std::span<Tensor* const> tensors, const ShardStore& store,
                                         std::span<Device* const> devices,
                                         BufferType& (Device::*weights_type)() = &Device::buffer_type);

/// Plans that differ in a step, a collective, or the layout of a node have different digests, except for rare
/// collisions. Addresses, memory and device names do not affect the digest.
uint64_t digest(const Plan& plan);

/// Readable text: layouts, steps, memory.
std::string to_string(const Plan& plan);
/// The sections of to_string() that describe the layouts, the constraints ("" if there are none) and the steps.
std::string layouts_text(const Plan& plan);
std::string constraints_text(const Plan& plan);
std::string steps_text(const Plan& plan);
/// The local graph of one rank, divided into steps. The text has exactly the nodes that the device runs, with their
/// numbers.
std::string local_text(const Plan& plan, int rank);
/// JSON text with the content of to_string(): {"devices": [...], "tensors": [{name, dtype, shape, layout}], "steps":
/// [{kind, ...}], "constraints": [{tensor, kind, layout, followed, conversions, bytes, seconds}] if there are any,
/// "segments": [first step, ...] if there are several, "memory": [{device, weights, cache, compute, communication,
/// total}]}.
std::string to_json(const Plan& plan);

}  // namespace shoal::meta

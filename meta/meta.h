// The meta device: several devices that act as one. The meta device implements the whole device interface, so a program
// uses it like any other Device. The split-state callback defines the layouts of weights and caches. The backend makes
// a plan of a graph (meta/plan/plan.h). Then the steps and collectives of the plan run on the members.
//
//   auto meta = MetaDevice::create({&cpu0, &cpu1}, callback);
//   auto weights = allocate_tensors(context.tensors(), meta->buffer_type(), Usage::kWeights);
//   auto backend = meta->init();
//   auto plan = backend->create_plan(graph);
//   tensor_set(*tokens, ...); backend->compute_async(*plan); backend->synchronize(); tensor_get(*logits, ...);
//
// The callback is called when a tensor is placed. The answer of the callback is valid as long as the tensor stays
// placed. The usual answer is an axis and segments with one length per device. A more general answer lists runs with
// their owners:
//
//   attn_q [256, 256] over 2 devices, 3:1 in heads of 32 rows:  axis 1, segments {{192, 64}}
//   fused qkv [256, 512] (256 + 128 + 128 rows), even:          axis 1, segments {{128,128}, {64,64}, {64,64}}
//   attn_k [256, 128], 4 KV heads shared by 8 devices:          axis 1, partition "32:{0,1} 32:{2,3} ..."
//
// Inputs and nodes usually need no layouts, because plans derive them. MetaOptions::constraints may require the layout
// of an input or node, or give a hint (meta/plan/constraints.h). The constraint callback is a second callback, because
// it answers only for some tensors, and when a graph is planned. The split-state callback answers for each weight and
// cache, and when the tensor is placed. A graph may also contain the op reshard.
//
//   options.constraints = constraints({{"x", Constraint::requirement(SplitState::even(1))}});
//
// With several processes (MetaOptions::processes), every process must make the same calls to the meta device, in the
// same order and with the same graphs. Remote devices represent members of other processes. All processes must write
// the same values to a tensor. All processes must read a tensor together, and each process gets the value.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator.h"
#include "devices/device.h"
#include "machine/machine.h"
#include "meta/device/mesh.h"
#include "meta/layout/shards.h"
#include "meta/plan/plan.h"

namespace shoal::meta {

enum class SplitAxis : int8_t { k0 = 0, k1 = 1, k2 = 2, k3 = 3, kMirrored = 4, kPartial = 5 };
/// "axis 0", ..., "mirrored", "partial".
std::string_view name_of(SplitAxis axis);

struct SplitState {
  SplitAxis axis = SplitAxis::kMirrored;
  /// segments[s][d] is the number of elements of segment s on device d, if `axis` is 0 to 3. Each segment is divided in
  /// device order.
  std::vector<std::vector<int64_t>> segments;
  /// A partition with any runs and any owners. If `partition` is set, `segments` must be empty.
  std::optional<Partition> partition;
  /// Divides the axis in proportion to one number >= 0 per device (Partition::by_ratio), whatever its length is. An
  /// empty list divides the axis evenly. Axis 0 of a quantised dtype is divided in whole blocks. If `ratio` is set,
  /// `segments` and `partition` must be empty.
  std::optional<std::vector<double>> ratio = {};

  static SplitState mirrored() { return {}; }
  static SplitState partial() { return {SplitAxis::kPartial, {}, {}}; }
  /// Throws InvalidArgument if the axis is not in 0 to 3.
  static SplitState split(int axis, std::vector<std::vector<int64_t>> segments);
  static SplitState split(int axis, Partition partition);
  static SplitState by_ratio(int axis, std::vector<double> ratio);
  static SplitState even(int axis) { return by_ratio(axis, {}); }
  /// "axis 1 {128, 128} {64, 64}", "axis 1 [32:{0,1} 32:{2,3}]", "axis 1 by 3:1", "axis 1", "mirrored".
  std::string to_string() const;
};

using SplitStateCallback = std::function<SplitState(const Tensor& tensor)>;
/// A callback that returns the state of the tensor's name, or mirrored for other names.
SplitStateCallback split_states(std::map<std::string, SplitState> states);

/// A required or preferred layout of an input or node (meta/plan/constraints.h).
struct Constraint {
  SplitState state;
  bool required = true;
  double factor = kHintFactor;  ///< LayoutConstraint::factor

  static Constraint requirement(SplitState state) { return {std::move(state)}; }
  static Constraint hint(SplitState state, double factor = kHintFactor) { return {std::move(state), false, factor}; }
};

/// Called for each tensor when a graph is planned, and for each use of a cached plan. nullopt: no constraint. Planning
/// fails if a weight or cache has a constraint. With several processes, the answers must be the same in all processes.
using ConstraintCallback = std::function<std::optional<Constraint>(const Tensor& tensor)>;
/// A callback that returns the constraint of the tensor's name. Names that no tensor has are ignored.
ConstraintCallback constraints(std::map<std::string, Constraint> constraints);

/// Checks the split state of a tensor on `devices` devices, and converts this state to a layout. Throws InvalidArgument
/// with a message such as "split state of blk.0.attn_q: segment lengths on axis 1 add up to 250, expected 256 (192 +
/// 58)". The axis and the owners must be in range. A segment needs one length >= 0 for each device. The lengths must
/// add up to the length of the axis. A split of axis 0 needs whole quantisation blocks. Partial needs f32, f16, bf16 or
/// i32, so a cache of quantised type cannot be partial.
Layout to_layout(const SplitState& state, const Tensor& tensor, int devices);

struct MetaOptions {
  std::vector<std::string> member_params = {};  ///< Device::init parameters of each member's backend; empty: defaults
  std::chrono::milliseconds comm_timeout = collectives::default_timeout();
  /// Creates the communicator of the ranks; empty: communicator_for() of collectives/factory.h.
  collectives::CommunicatorFactory communicator = nullptr;
  RuleLookup rules = rule_text;         ///< sharding rules; an op without a rule runs mirrored
  ConstraintCallback constraints = {};  ///< layouts of inputs and nodes; empty: plans choose all of them
  /// Result of Device::offload_op: whether the node runs faster on this device even if the weights of the node must be
  /// streamed. If this function is empty, the result is true if all members return true.
  std::function<bool(const Tensor& node)> offload_op = {};
  /// The machine model that contains the members by name. Plans use its speeds and links. If the model is absent or
  /// lacks a member, plans use rough default values (machine/cost_model.h).
  std::shared_ptr<const machine::MachineModel> machine = {};
  /// Name of the implementation of the collectives. `communicator` must offer this implementation
  /// (collectives::check_implementation).
  std::string comm = collectives::default_implementation();
  /// The group of the processes that the members belong to. Every process creates the same device, with streams and
  /// memory for its own members only. nullptr: all members belong to this process.
  ProcessGroup* processes = nullptr;
};

class MetaDevice : public Device {
 public:
  /// Rank i is members[i]. Throws InvalidArgument for no members, a member listed twice, invalid options
  /// (collectives::check_options), or a member that is a meta device. Make one meta device of all simple devices, or
  /// give several meta devices to a scheduler (sched/scheduler.h).
  static std::unique_ptr<MetaDevice> create(std::vector<Device*> members, SplitStateCallback callback,
                                            MetaOptions options = {});
  virtual std::span<Device* const> members() const = 0;
  virtual const Mesh& mesh() const = 0;
  virtual const ShardStore& shards() const = 0;
  /// Offers the shards of `store` for a tensor that has no memory yet. When the tensor is placed on this device, these
  /// shards are used if they have the layout that the callback returns. So a plan that was made with `store` can run
  /// unchanged (PlanOptions::prepared).
  virtual void adopt(const Tensor& tensor, const ShardStore& store) = 0;
  /// Calls the callback for a tensor, checks the answer, and returns the layout. If the tensor is already placed on
  /// this device, returns the layout of the tensor without a call of the callback.
  virtual Layout ask(const Tensor& tensor) const = 0;
  /// The context for planning graphs on this device, without the shards of placed tensors. The context contains the
  /// communicator traits that the communicator factory predicts.
  virtual PlanContext plan_context() const = 0;
  /// Calls MetaOptions::constraints and checks the answer; empty if this option is empty.
  virtual ConstraintLookup constraints() const = 0;
};

/// The shard of a tensor on rank `rank`. The tensor is in a meta buffer: a weight, a cache, or a tensor of a planned
/// graph.
const Tensor& shard(const Tensor& tensor, int rank);
/// Like shard() of a const tensor, but the shard may be written. tensor_set of a partial tensor writes the value to
/// rank 0's addend and zeros to the other addends. To write individual addends, use tensor_set(shard(bias, 1), data, 0,
/// bytes).
Tensor& shard(Tensor& tensor, int rank);
/// Layout of a tensor in a meta buffer.
const Layout& layout_of(const Tensor& tensor);

/// The plan in a GraphPlan of a meta backend, and the number of bytes that this GraphPlan allocated on each rank.
const Plan& plan_of(const GraphPlan& plan);
std::vector<size_t> allocated_per_rank(const GraphPlan& plan);
/// Number of bytes that a meta device's buffer of weights or caches uses on each rank.
std::vector<size_t> allocated_per_rank(const Buffer& buffer);

}  // namespace shoal::meta

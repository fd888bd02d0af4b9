// The meta device: several devices that act as one. It implements the whole device interface: weights and caches
// placed in its buffers are sharded as the split-state callback says, graphs are planned (meta/plan/plan.h) and run on
// the members with collectives between them. To the rest of a program it is one more Device.
//
//   auto meta = MetaDevice::create({&cpu0, &cpu1}, callback);
//   auto weights = allocate_tensors(context.tensors(), meta->buffer_type(), Usage::kWeights);
//   auto backend = meta->init();
//   auto plan = backend->create_plan(graph);
//   tensor_set(*tokens, ...); backend->compute_async(*plan); backend->synchronize(); tensor_get(*logits, ...);
//
// The callback is asked when a tensor is placed; its answer holds as long as the tensor lies there. The plain answer is
// an axis and segments with one length per device; a richer one gives the runs with their owners:
//
//   attn_q [256, 256] over 2 devices, 3:1 in heads of 32 rows:  axis 1, segments {{192, 64}}
//   fused qkv [256, 512] (256 + 128 + 128 rows), even:          axis 1, segments {{128,128}, {64,64}, {64,64}}
//   attn_k [256, 128], 4 KV heads shared by 8 devices:          axis 1, partition "32:{0,1} 32:{2,3} ..."
//
// Over several processes (MetaOptions::processes) each does all of this with the same graphs in the same order, with
// remote devices for the members of the others. What is set is set in every process; what is read is read in every
// process at the same time, and all get it.
#pragma once

#include <chrono>
#include <functional>
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
  /// For an axis: segments[s][d] = elements of segment s that device d gets; a segment's runs come in device order.
  std::vector<std::vector<int64_t>> segments;
  /// Instead of segments: any runs with any owners.
  std::optional<Partition> partition;

  static SplitState mirrored() { return {}; }
  static SplitState partial() { return {SplitAxis::kPartial, {}, {}}; }
  /// Throws InvalidArgument when the axis is none of 0 to 3.
  static SplitState split(int axis, std::vector<std::vector<int64_t>> segments);
  static SplitState split(int axis, Partition partition);
  /// "axis 1 {128, 128} {64, 64}", "axis 1 [32:{0,1} 32:{2,3}]", "mirrored".
  std::string to_string() const;
};

using SplitStateCallback = std::function<SplitState(const Tensor& tensor)>;

/// Checks an answer for a tensor on `devices` devices and turns it into a layout. Throws InvalidArgument:
/// "split state of blk.0.attn_q: segment lengths on axis 1 add up to 250, expected 256 (192 + 58)".
/// Checked: axis in range, one length per device, none negative, sums, whole quantisation blocks on axis 0,
/// Partial only for f32, f16, bf16 and i32 (not for caches of quantised type), owners in range.
Layout to_layout(const SplitState& state, const Tensor& tensor, int devices);

struct MetaOptions {
  std::vector<std::string> member_params = {};  ///< Device::init parameters of each member's backend; empty = defaults
  std::chrono::milliseconds comm_timeout = collectives::default_timeout();
  /// What the ranks talk through; empty: communicator_for() of collectives/factory.h.
  collectives::CommunicatorFactory communicator = nullptr;
  RuleLookup rules = rule_text;  ///< sharding rules; an op without one runs mirrored
  /// Device::offload_op: is this node worth bringing weights from elsewhere for? By default what all members say.
  std::function<bool(const Tensor& node)> offload_op = {};
  /// The machine that the members are of, by name: plans are made for its speeds and links. Without it, or where it has
  /// not all of them, for rough figures (machine/cost_model.h).
  std::shared_ptr<const machine::MachineModel> machine = {};
  /// Collectives by which implementation, of those that `communicator` offers (collectives::check_implementation).
  std::string comm = collectives::default_implementation();
  /// The processes that the members belong to; each makes the same device, and has the streams and the memory of its
  /// own members only. nullptr: all are of this one.
  ProcessGroup* processes = nullptr;
};

class MetaDevice : public Device {
 public:
  /// Members keep their order: rank i is members[i]. Throws InvalidArgument for no members, one listed twice, one
  /// that is a meta device itself (all simple devices make one, and several are for a scheduler, sched/scheduler.h),
  /// or options that cannot hold (collectives::check_options).
  static std::unique_ptr<MetaDevice> create(std::vector<Device*> members, SplitStateCallback callback,
                                            MetaOptions options = {});
  virtual std::span<Device* const> members() const = 0;
  virtual const Mesh& mesh() const = 0;
  virtual const ShardStore& shards() const = 0;
  /// The tensor, which has no memory yet, gets these shards when it is placed here, provided that they lie as the
  /// callback says: a plan that was made with `store` can then run as it is (PlanOptions::prepared).
  virtual void adopt(const Tensor& tensor, const ShardStore& store) = 0;
  /// The callback's word on a tensor, checked. Of a tensor that is placed here: how it lies, the callback's first word.
  virtual Layout ask(const Tensor& tensor) const = 0;
  /// What graphs are planned by here, but for the shards of what is placed; with a communicator as its factory
  /// describes it.
  virtual PlanContext plan_context() const = 0;
};

/// Rank `rank`'s shard of a tensor placed in a meta buffer (weights, caches, or a planned graph's tensors).
const Tensor& shard(const Tensor& tensor, int rank);
/// The same to write to. What tensor_set writes to a partial tensor goes to rank 0's addend, with zeros for the others;
/// addends of one's own are set one by one: tensor_set(shard(bias, 1), data, 0, bytes).
Tensor& shard(Tensor& tensor, int rank);
/// How a tensor in a meta buffer lies.
const Layout& layout_of(const Tensor& tensor);

/// The plan behind a GraphPlan made by a meta backend, and how many bytes it allocated on each rank.
const Plan& plan_of(const GraphPlan& plan);
std::vector<size_t> allocated_per_rank(const GraphPlan& plan);
/// Bytes of weights or caches that a buffer of the meta device holds on each rank.
std::vector<size_t> allocated_per_rank(const Buffer& buffer);

}  // namespace shoal::meta
